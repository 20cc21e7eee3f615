"""A broker's log on standard error: lines for people, or JSON for programs, from the same calls of `logging`."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_RESET, _BOLD, _DIM, _BLUE = "\033[0m", "\033[1m", "\033[2m", "\033[34m"
_COLOURS = {"debug": "\033[32m", "info": "\033[32m", "warning": "\033[33m"}
_RED = "\033[31m"


def set_up_logs(log_format: str, level: str) -> None:
    """One handler for everything."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines(sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class TextLines(logging.Formatter):
    """The time, the level, what happened and who says so; a traceback follows below."""

    def __init__(self, coloured: bool) -> None:
        super().__init__()
        self._coloured = coloured

    def formatMessage(self, record: logging.LogRecord) -> str:
        time, level, text = _time_of(record), f"{record.levelname.lower():<9}", f"{record.message:<30}"
        if not self._coloured:
            return f"{time} [{level}] {text} [{record.name}]"
        colour = _COLOURS.get(level.rstrip(), _RED)
        return (
            f"{_DIM}{time}{_RESET} [{colour}{_BOLD}{level}{_RESET}] {_BOLD}{text}{_RESET} "
            f"[{_BOLD}{_BLUE}{record.name}{_RESET}]"
        )


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": _time_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
