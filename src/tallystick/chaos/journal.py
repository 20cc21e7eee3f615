"""What workers were told, line by line, in files that outlast their kill; and what can be read from that.

A line is `<seconds> <word> <rest>`, its time that of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tallystick.chaos.ledgers import message_names


class JournalWriter:
    """For a worker. One write a line, so that a kill takes at most the line that it interrupts."""

    def __init__(self, path: Path | str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, word: str, *rest: object) -> None:
        os.write(self._file, " ".join([f"{time.monotonic():.3f}", word, *map(str, rest)]).encode() + b"\n")


class Note(NamedTuple):
    at: float
    word: str
    rest: list[str]


class Pause(NamedTuple):
    """When a worker was stopped, and when it went on."""

    began: float
    ended: float


class JournalReader:
    """Reads a journal, again and again, from where it came to."""

    def __init__(self, path: Path) -> None:
        self._path, self._place = path, 0
        self.notes: list[Note] = []

    def look(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            read = file.read()
        whole = read[: read.rfind(b"\n") + 1]
        self._place += len(whole)
        for line in whole.decode().splitlines():
            at, word, *rest = line.split(" ")
            self.notes.append(Note(float(at), word, rest))

    def told(self, word: str) -> set[str]:
        """Names of the messages of all work of which the worker was told this."""
        return {
            name for note in self.notes if note.word == word for name in message_names(note.rest[0], int(note.rest[1]))
        }

    def count(self, word: str) -> int:
        return sum(note.word == word for note in self.notes)

    def total(self, word: str) -> int:
        """A number that each life of the worker counts from 0: the last that each wrote, in all."""
        last: defaultdict[int, int] = defaultdict(int)
        life = 0
        for note in self.notes:
            if note.word == "start":
                life += 1
            elif note.word == word:
                last[life] = int(note.rest[0])
        return sum(last.values())

    @property
    def done(self) -> bool:
        """Whether the worker, in its present life, has come to the end of its work."""
        return self._last_of("start", "done") == "done"

    @property
    def at_work(self) -> bool:
        """Whether the worker, in its present life, has begun with its work."""
        return self._last_of("start", "try", "done") in ("try", "done")

    def _last_of(self, *words: str) -> str:
        return next((note.word for note in reversed(self.notes) if note.word in words), "")

    def longest_wait(self, pauses: Iterable[Pause]) -> float:
        """The longest time that a running producer got nothing through: from one success to the next of the same life,
        without the time that it was itself stopped."""
        longest, before = 0.0, None
        stopped = list(pauses)
        for note in self.notes:
            if note.word in ("start", "held"):  # held: it did not try
                before = note.at
            elif note.word == "ok" and before is not None:
                longest = max(longest, note.at - before - _within(stopped, before, note.at))
                before = note.at
        return longest


def _within(pauses: list[Pause], began: float, ended: float) -> float:
    return sum(max(0.0, min(ended, pause.ended) - max(began, pause.began)) for pause in pauses)
