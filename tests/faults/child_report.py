"""What a child tells its parent: a line of JSON each, written at once, so that a kill loses nothing of it."""

from __future__ import annotations

import json
import logging
import os
from typing import Any


class Report:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, **what: Any) -> None:
        os.write(self._file, json.dumps(what).encode() + b"\n")


class ReportedLog(logging.Handler):
    """The client's log lines as lines of a report."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.INFO)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report.write(log=record.getMessage())


def report_log(report: Report) -> None:
    log = logging.getLogger("tallystick.client")
    log.setLevel(logging.INFO)
    log.addHandler(ReportedLog(report))
