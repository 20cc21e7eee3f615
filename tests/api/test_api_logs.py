"""The broker's log: a line an event, for people or for programs."""

from __future__ import annotations

import json
import logging
import sys

from tallystick.api.serving.logs import JsonLines, TextLines


def record(text: str, level: int = logging.WARNING) -> logging.LogRecord:
    made = logging.LogRecord("tallystick.broker", level, __file__, 1, text, ("t-1",), None)
    made.created = 1_767_225_600.25
    return made


def failed(text: str) -> logging.LogRecord:
    made = record(text, logging.ERROR)
    try:
        raise ValueError("no such thing")
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


def test_a_line_for_people() -> None:
    line = TextLines(coloured=False).format(record("parked %s"))
    assert line == "2026-01-01T00:00:00.250000Z [warning  ] parked t-1                     [tallystick.broker]"


def test_an_error_for_people_has_its_traceback_below() -> None:
    first, *rest = TextLines(coloured=False).format(failed("lost %s")).splitlines()
    assert "[error    ] lost t-1" in first
    assert rest[0].startswith("Traceback")
    assert rest[-1] == "ValueError: no such thing"


def test_on_a_terminal_there_are_colours() -> None:
    line = TextLines(coloured=True).format(record("parked %s"))
    assert "\033[33m\033[1mwarning  \033[0m" in line


def test_a_line_for_programs() -> None:
    assert json.loads(JsonLines().format(record("parked %s"))) == {
        "event": "parked t-1",
        "level": "warning",
        "logger": "tallystick.broker",
        "timestamp": "2026-01-01T00:00:00.250000Z",
    }


def test_an_error_for_programs_is_one_line() -> None:
    line = JsonLines().format(failed("lost %s"))
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: no such thing")
