"""What the monkey's worker processes are told."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Literal

import msgspec

from tallystick.chaos.modes import Mode

Sabotage = Literal["", "barrier", "inbox"]


class WorkerSettings(msgspec.Struct, kw_only=True):
    """All of it, as one argument."""

    mode: Mode
    consumers: int
    rate: float
    """Pieces of work a second."""
    messages: int = 0
    """How many pieces of work there are in all lives together; 0 for no end."""
    sabotage: Sabotage = ""
    enough: str
    """Once this file exists, no new work is begun."""
    hold: str
    """While this one exists, the consumers are too far behind, and new work waits."""
    number: int = 0
    urls: list[str] = []
    database: str = ""
    journal: str = ""

    @property
    def is_held(self) -> bool:
        return Path(self.hold).exists()

    @property
    def is_enough(self) -> bool:
        return Path(self.enough).exists()


def as_argument(settings: WorkerSettings) -> str:
    return msgspec.json.encode(settings).decode()


def given_settings() -> WorkerSettings:
    """In the worker: its settings; from here on its log has what the library logs."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    return msgspec.json.decode(sys.argv[1], type=WorkerSettings)
