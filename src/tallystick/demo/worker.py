"""What the demo's worker processes share: their arguments, and an end in good order."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from types import FrameType


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", required=True, help="the broker")
    parser.add_argument("--bank", required=True, help="this bank's database")
    parser.add_argument("--share", type=int, default=0, help="which share of the work is this process's")
    parser.add_argument("--shares", type=int, default=1, help="how many shares there are")
    parser.add_argument("--sabotage", action="store_true", help="do it the wrong way, to see that the proof notices")
    return parser.parse_args()


def until_told() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    told = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        told.set()

    signal.signal(signal.SIGTERM, tell)
    signal.signal(signal.SIGINT, tell)
    return told


def say(text: str) -> None:
    """A line in the worker's log."""
    sys.stderr.write(f"{text}\n")
