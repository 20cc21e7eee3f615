"""The databases of producers and consumers: what each writes beside its messages, and what is read of it later.

A piece of work has a name, and so has each of its messages: `p0.2-17/1` is the second message of the seventeenth piece
of work of producer 0 in its second life. Names, not counts, are compared.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tallystick.barrier import create_tables
from tallystick.demo.banks import BUSY_SECONDS, count, looking

TOPIC = "chaos-"
PRODUCERS, CONSUMERS = "chaos-p", "chaos-c"

# `confirmed` is of use only to messages without a transaction: the outbox and the brokers know of the others. A block
# that is free to change its broker does not know its gid while it writes its row, so the database notes it: the row is
# the last one when the block is marked or put into the outbox. (An early block is marked before its row is there. It
# knows its gid, and so do all rows before it.) A row that leaves the outbox after it was claimed was sent by the
# re-driver.
_PRODUCER = """
create table work (name text primary key, parts integer not null, gid text not null, confirmed integer not null);
create index work_unconfirmed on work (name) where confirmed = 0;
create trigger note_marked after insert on tallystick_barrier when new.reason = 'msg' begin
    update work set gid = new.gid where rowid = (select max(rowid) from work) and gid = '';
end;
create trigger note_renamed after update of gid on tallystick_barrier begin
    update work set gid = new.gid where gid = old.gid;
end;
create trigger note_kept after insert on tallystick_outbox begin
    update work set gid = new.gid where rowid = (select max(rowid) from work);
end;
create table redriven (gid text not null);
create trigger note_redriven after delete on tallystick_outbox when old.attempts > 0 begin
    insert into redriven values (old.gid);
end;
"""
# Nothing here keeps a message from having its effect twice, on purpose: only its mark does.
_CONSUMER = """
create table effect (
    name text not null, message_id text not null, identity text not null,
    store text not null, topic text not null, queue integer not null, at integer not null
);
"""


class Work(NamedTuple):
    name: str
    parts: int
    gid: str = ""

    @property
    def messages(self) -> list[str]:
        return message_names(self.name, self.parts)


class Effect(NamedTuple):
    """What a consumer did on the word of a message. `marked`: what makes it happen once is there, too."""

    name: str
    message_id: str
    marked: bool = True


def message_names(name: str, parts: int) -> list[str]:
    return [f"{name}/{part}" for part in range(parts)]


def connect(path: Path | str) -> sqlite3.Connection:
    """A connection as the workers use it. It waits for the other threads of its worker."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    # A kill takes nothing back that the kernel has; the machine's own end is not what is tried here.
    connection.execute("pragma synchronous = normal")
    return connection


def found_producer(path: Path) -> None:
    _found(path, _PRODUCER)


def found_consumer(path: Path) -> None:
    _found(path, _CONSUMER)


def _found(path: Path, tables: str) -> None:
    connection = connect(path)
    connection.execute("pragma journal_mode = wal")  # so that it can be read while the worker writes
    create_tables(connection)
    connection.executescript(tables)
    connection.close()


def note_work(connection: sqlite3.Connection, work: Work) -> None:
    """Part of the caller's transaction, if it has one."""
    connection.execute("insert into work values (?, ?, ?, 0)", work)


def confirm(connection: sqlite3.Connection, name: str) -> None:
    connection.execute("update work set confirmed = 1 where name = ?", (name,))


def unconfirmed_work(connection: sqlite3.Connection) -> list[Work]:
    return [Work(*row) for row in connection.execute("select name, parts, gid from work where confirmed = 0")]


_WORK = "select rowid, name, parts, gid from work where rowid > ? order by rowid"


class ProducerBooks:
    """What a producer's database holds, read again and again; rows are never changed, so old ones are kept."""

    def __init__(self, path: Path) -> None:
        self._path, self._last = path, 0
        self._by_gid: dict[str, Work] = {}
        self.committed: set[str] = set()  # names of messages

    def look(self) -> None:
        with looking(self._path) as connection:
            rows = connection.execute(_WORK, (self._last,))
            for self._last, *row in rows:
                work = Work(*row)
                self._by_gid[work.gid] = work
                self.committed.update(work.messages)

    def of_gids(self, gids: Iterable[str]) -> set[str]:
        """The messages of some transactions, as far as these are this producer's."""
        return {name for gid in gids if gid in self._by_gid for name in self._by_gid[gid].messages}

    def unconfirmed(self) -> set[str]:
        """Messages without a transaction that no broker has confirmed."""
        with looking(self._path) as connection:
            return {name for work in unconfirmed_work(connection) for name in work.messages}

    def outbox(self) -> set[str]:
        """Gids that are in the outbox."""
        with looking(self._path) as connection:
            return {gid for (gid,) in connection.execute("select gid from tallystick_outbox")}

    def redriven(self) -> int:
        return count(self._path, "redriven")

    def outcomes(self) -> dict[str, str]:
        """What the barrier says of each gid."""
        with looking(self._path) as connection:
            rows = connection.execute("select gid, reason from tallystick_barrier where op = 'msg'").fetchall()
        return {gid: "committed" if reason == "msg" else "rolled_back" for gid, reason in rows}


_EFFECTS = """
select e.rowid, e.name, e.message_id,
    exists (select 1 from tallystick_inbox i where i.consumer_group = :group and i.message_id = e.identity)
    or exists (select 1 from tallystick_offset o where o.consumer_group = :group and o.store = e.store
        and o.topic = e.topic and o.queue = e.queue and o.next_offset > e.at)
from effect e where e.rowid > :last order by e.rowid
"""


class ConsumerBooks:
    """What a consumer's database holds, read again and again."""

    def __init__(self, path: Path, group: str) -> None:
        self._path, self._group, self._last = path, group, 0
        self.effects: list[Effect] = []
        self.names: set[str] = set()  # of messages that have had their effect

    def look(self) -> None:
        """Effects that came since the last look, each with whether its mark is there: an inbox row, or an offset of the
        group that has moved past it."""
        with looking(self._path) as connection:
            rows = connection.execute(_EFFECTS, {"group": self._group, "last": self._last}).fetchall()
        for self._last, name, message_id, marked in rows:
            self.effects.append(Effect(name, message_id, bool(marked)))
            self.names.add(name)

    def look_again(self) -> None:
        """From the beginning: what was marked once may not be any more."""
        self._last, self.effects, self.names = 0, [], set()
        self.look()
