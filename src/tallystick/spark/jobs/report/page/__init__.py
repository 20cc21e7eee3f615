"""The page: one HTML file that loads nothing, runs nothing, and can be mailed or archived.

The templates have its elements and its words, the modules here what stands in them. Whatever a template is given is
text, and is escaped, unless a template made it.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from tallystick.spark.jobs.report.facts import Facts
from tallystick.spark.jobs.report.page.backlog import OLD_MS, advice, lags, pending
from tallystick.spark.jobs.report.page.charts import length
from tallystick.spark.jobs.report.page.outcomes import checked, histogram, outcomes
from tallystick.spark.jobs.report.page.volume import volume
from tallystick.spark.jobs.report.page.words import DASH, age_ms, at, coordinate, count, many, share, short, size, took


def draw(facts: Facts) -> str:
    """Sections without rows are not computed: the template says that there is nothing."""
    figures = facts.figures
    return (
        _pages()
        .get_template("page.html.j2")
        .render(
            facts=facts,
            span=facts.span,
            total=facts.total,
            oldest_ms=_oldest_ms(facts),
            advice=advice(facts),
            old_ms=OLD_MS,
            volume=volume(facts) if figures["volume"] else None,
            outcomes=outcomes(facts) if figures["outcomes"] else None,
            histogram=histogram(facts) if facts.overall else None,
            checked=checked(facts),
            pending=pending(facts) if figures["pending"] else None,
            lags=lags(facts),
        )
    )


def _pages() -> Environment:
    pages = Environment(
        loader=PackageLoader(__name__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    words = (at, coordinate, count, many, share, short, size, took)
    pages.filters.update({word.__name__: word for word in words})
    pages.globals.update(DASH=DASH, length=length)
    return pages


def _oldest_ms(facts: Facts) -> float | None:
    times = [row["oldest_at"] for row in facts.figures["pending"] if row["state"] == "prepared"]
    return age_ms(min(times), facts.span.now_ms) if times else None
