"""What a report is made of and what it comes to."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from tallystick.core.durations import DAY_MS
from tallystick.core.errors import InvalidRequest
from tallystick.credentials.credentials import Credentials, find_credentials

MOST_STEPS = 100
_SECOND = 1_000
_STEPS = [
    *(seconds * _SECOND for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800)),
    *(hours * 3_600 * _SECOND for hours in (1, 2, 3, 6, 12)),
    *(days * DAY_MS for days in (1, 2, 7, 14, 28)),
]


class ReportSettings(Struct, frozen=True, kw_only=True):
    """`since_ms` is left out for a day before `until_ms`, and that for now. `topics` is left empty for all."""

    url: str
    output: str = "tallystick-report"
    since_ms: int | None = None
    until_ms: int | None = None
    topics: tuple[str, ...] = ()
    archive: str | None = None
    credentials: Credentials = field(default_factory=find_credentials)


class ReportSummary(Struct, frozen=True, kw_only=True):
    """The figures at the top of the page, and where the page is. `missing`: at most so many messages of the range were
    trimmed and are not in `messages`. `hidden`: what the token may not read and the figures leave out; empty if it may
    read all."""

    page: str
    figures: str
    since_ms: int
    until_ms: int
    topics: int
    messages: int
    missing: int
    bytes: int
    committed: int
    rolled_back: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    pending: int
    parked: int
    dead_letters: int
    lag: int
    hidden: str = ""


class Span(NamedTuple):
    """The range of a report, and the width of its time steps. `now_ms` is the broker's clock."""

    since_ms: int
    until_ms: int
    step_ms: int
    now_ms: int

    @property
    def first_ms(self) -> int:
        """Where the first step begins, which may be before the range does: steps begin at round times."""
        return self.since_ms // self.step_ms * self.step_ms

    @property
    def steps(self) -> list[int]:
        """Where each step begins."""
        return list(range(self.first_ms, self.until_ms, self.step_ms))


def span_of(settings: ReportSettings, now_ms: int) -> Span:
    until = now_ms if settings.until_ms is None else settings.until_ms
    since = until - DAY_MS if settings.since_ms is None else settings.since_ms
    if since >= until:
        raise InvalidRequest(
            "since: the range is empty, it must begin before it ends (times without a zone are UTC)", field="since"
        )
    return Span(since, until, _step(until - since), now_ms)


def _step(length_ms: int) -> int:
    """The smallest step that cuts the range into no more pieces than a plot can show."""
    return next((step for step in _STEPS if length_ms / step <= MOST_STEPS), -(-length_ms // MOST_STEPS))
