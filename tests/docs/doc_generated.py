"""The parts of the reference that are made from the code, so that they cannot go stale.

A page marks the place with `<!-- begin generated: configuration -->` and `<!-- end generated -->`. The tests compare;
this program writes: `.venv/bin/python tests/docs/doc_generated.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from doc_pages import ROOT
from doc_tables_access import access, roles
from doc_tables_api import async_client, barrier_names, bodies, check_back_handlers, client, extensions, others, routes
from doc_tables_broker import broker_errors, check_answers, configuration, limits, metrics, tables
from doc_tables_cli import commands, exit_codes, library_errors
from doc_tables_supported import databases, frameworks
from doc_tables_testing import fixtures, kit, steps

PIECES: dict[str, Callable[[], str]] = {
    "access": access,
    "async client": async_client,
    "barrier": barrier_names,
    "bodies": bodies,
    "broker errors": broker_errors,
    "check answers": check_answers,
    "client": client,
    "commands": commands,
    "configuration": configuration,
    "exit codes": exit_codes,
    "extensions": extensions,
    "library errors": library_errors,
    "handlers": check_back_handlers,
    "limits": limits,
    "metrics": metrics,
    "other names": others,
    "roles": roles,
    "routes": routes,
    "supported databases": databases,
    "supported frameworks": frameworks,
    "tables": tables,
    "test fixtures": fixtures,
    "test kit": kit,
    "test steps": steps,
}

_PLACE = re.compile(
    r"(?P<begin><!-- begin generated: (?P<name>[a-z ]+) -->\n)(?P<text>.*?)(?P<end><!-- end generated -->)", re.DOTALL
)


def places() -> Iterator[tuple[str, str, str]]:
    """(page, name of the piece, text that the page has for it)"""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for found in _PLACE.finditer(path.read_text()):
            yield str(path.relative_to(ROOT)), found["name"], found["text"]


def made(name: str) -> str:
    """The text that a page should have."""
    return f"\n{PIECES[name]().strip()}\n\n"


def write(pages: Iterable[str]) -> None:
    for page in pages:
        path = ROOT / page
        path.write_text(_PLACE.sub(lambda found: found["begin"] + made(found["name"]) + found["end"], path.read_text()))


if __name__ == "__main__":
    write(sorted({page for page, _, _ in places()}))
