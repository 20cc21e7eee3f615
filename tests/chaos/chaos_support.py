"""The monkey run as a user runs it, what it left behind, and damage that is done to that."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tallystick.chaos.evidence import Inspector, Names
from tallystick.chaos.modes import PROMISES
from tallystick.chaos.schedule import Sizes
from tallystick.chaos.verdict import settled
from tallystick.demo.verdict import passed

SMALL = Sizes(2, 2, 2)


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "tallystick", "chaos", "--json", *options]


def chaos(*options: str) -> tuple[int, dict[str, Any]]:
    """Run it as a user does; exit code and what it says to programs."""
    done = subprocess.run(command(*options), capture_output=True, text=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def failed(mode: dict[str, Any]) -> set[str]:
    rounds = [line for look in mode["rounds"] for line in look["lines"]]
    return {line["claim"] for line in [*mode["claims"], *rounds] if not line["holds"]}


class Left(NamedTuple):
    """What a run has left behind, its brokers at work again."""

    directory: Path
    result: dict[str, Any]
    code: int
    urls: list[str]


def judged(left: Left, directory: Path) -> set[str]:
    inspector = Inspector("check-back", Names(directory), SMALL.producer, SMALL.consumer, left.urls)
    lines = settled(inspector.settled(), PROMISES["check-back"])
    assert passed(lines) == all(line.holds for line in lines)
    return {line.claim for line in lines if not line.holds}


Damage = Callable[[sqlite3.Connection], object]


def sql(*statements: str) -> Damage:
    return lambda connection: [connection.execute(statement) for statement in statements]


GHOST = (
    "insert into effect select 'p9.0-1/0', 'x/0', 'x/0', store, topic, queue, at from effect limit 1",
    "insert into tallystick_inbox select consumer_group, 'x/0', created_at from tallystick_inbox limit 1",
)
DAMAGES: dict[str, tuple[str, Damage, set[str]]] = {
    "lost": ("consumer-0", sql("delete from effect where rowid = 1"), {"what is committed has been consumed"}),
    "duplicated": (
        "consumer-1",
        sql("insert into effect select * from effect limit 1"),
        {"none has been consumed twice", "no message of a log has had its effect twice"},
    ),
    "ghost": ("consumer-0", sql(*GHOST), {"nothing else has been consumed"}),
    "contradictory outcome": (
        "producer-0",
        sql("update tallystick_barrier set reason = 'rollback' where id = (select min(id) from tallystick_barrier "
            "where op = 'msg' and reason = 'msg')"),
        {"every transaction has one outcome"},
    ),
    "effect without inbox row": (
        "consumer-0",
        sql("delete from tallystick_inbox where message_id in (select identity from effect limit 1)"),
        {"every effect has its mark beside it"},
    ),
    "effect before the offset": (
        "consumer-1",
        sql("update tallystick_offset set next_offset = 0"),
        {"every effect has its mark beside it"},
    ),
}  # fmt: skip


def judged_after(left: Left, directory: Path, kind: str) -> set[str]:
    """What is found wrong with a copy, in this directory, to which one kind of damage was done."""
    database, damage, _ = DAMAGES[kind]
    for path in left.directory.glob("*.*"):
        if path.is_file():
            shutil.copy(path, directory)
    with closing(sqlite3.connect(directory / f"{database}.db", isolation_level=None)) as connection:
        damage(connection)
    return judged(left, directory)


def living(directory: Path) -> list[str]:
    """Processes that work in a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(directory).encode() in told and process.name != str(os.getpid()):
            found.append(told.decode(errors="replace"))
    return found
