"""The machine against mends that are taken out: it must find each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from border_hunt import HUNT, machine_on
from border_kinds import Kind
from border_machine import Broken
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from brokers import BrokerProcess
from tallystick.barrier.adapters import sqlalchemy
from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.errors import AlreadyDecided
from tallystick.barrier.operations import barrier, identity, outbox
from tallystick.barrier.statement import Operation, Steps, operation
from tallystick.client.base import databases
from tallystick.client.transactions import local
from tallystick.client.transactions.block import Block
from tallystick.client.transactions.local import LocalTransaction
from tallystick.client.transactions.script import Script
from tallystick.client.transactions.script import nothing as no_steps
from tallystick.core.errors import TransactionFailed


def nothing(*_: Any, **__: Any) -> Script[None]:
    """In the place of a check."""
    return no_steps()


@operation
def untied(sql: Dialect, insert: Operation[None], table: str) -> Steps[identity.Whereabouts]:
    """Into whatever transaction there is."""
    yield from insert.steps(sql, *insert.args, **insert.options)
    return (yield from identity.find_barrier(sql, table))


def untied_mark(_: LocalTransaction, gid: str, table: str) -> Operation[identity.Whereabouts]:
    return untied(barrier.mark_committed(gid, table=table), table)


def untied_put(
    _: LocalTransaction, gid: str, broker: str, payload: bytes, table: str
) -> Operation[identity.Whereabouts]:
    return untied(outbox.outbox_put(gid, broker, payload), table)


def never_asked(_: Block) -> Script[str]:
    yield from ()
    return "rolled_back"


def stop_as_before(block: Block, decided: AlreadyDecided) -> Script[None]:
    """A gid that has an outcome is an error like any other."""
    yield from block.local.give_up()
    if block.pinned is not None:
        yield from block.withdraw(block.pinned)
    raise TransactionFailed(decided.detail)


def commit_unseen(adapter: sqlalchemy.SqlAlchemyAdapter) -> None:
    adapter._owner.commit()


@dataclass
class Bug:
    """Patches that take a mend out, and what is wrong then: others of the same kind do not count."""

    kind: str
    wanted: str
    patches: list[tuple[Any, str, Callable[..., Any]]]


LOST = "^row .* is missing"
ENDED = "ended inside|^row .* is missing"
TWICE = "does not know|effect 2 times"
DROPPED = "is rolled_back at the broker, and committed in the barrier"
LEFT = "^outbox row .* not settled"

UNTIED = [
    (LocalTransaction, "require", nothing),
    (LocalTransaction, "mark", untied_mark),
    (LocalTransaction, "put", untied_put),
]
UNTIED_HANDLER = [(LocalTransaction, "end", LocalTransaction.commit)]

QUICKEST = "the tether is not required (sqlite3)"

BUGS = {
    QUICKEST: Bug("sqlite", ENDED, UNTIED),
    "the tether is not required (PostgreSQL)": Bug("psycopg", ENDED, UNTIED),
    "the tether is not required (MariaDB)": Bug("pymysql", ENDED, UNTIED),
    "the tether is not required (Session)": Bug("session", ENDED, UNTIED),
    "a handler's tether is not required (sqlite3)": Bug("sqlite", TWICE, UNTIED_HANDLER),
    "a handler's tether is not required (MariaDB)": Bug("pymysql", TWICE, UNTIED_HANDLER),
    "nested blocks are not refused": Bug(
        "psycopg", "^row .* is there|effect 0 times", [(local, "_refuse_second", nothing)]
    ),
    "a block that fails tells Rollback without asking the barrier": Bug(
        "psycopg", DROPPED, [(Block, "_decided", never_asked)]
    ),
    "a retry of what is committed rolls it back": Bug(
        "sqlite",
        DROPPED,
        [(Block, "_refuse_decided", nothing), (Block, "_stop", stop_as_before), (Block, "_decided", never_asked)],
    ),
    "schema and identity are not part of the source, and nobody looks": Bug(
        "psycopg",
        f"{DROPPED}|{LEFT}",
        [
            (identity.Whereabouts, "source", lambda _, address: address),
            (identity, "require_source", nothing),
            (barrier, "require_source", nothing),
        ],
    ),
    "a way in leads to the connection's first schema, and nobody looks": Bug(
        "pymysql",
        f"{DROPPED}|{LEFT}",
        [
            (databases.Door, "lead", lambda _, adapter: adapter),
            (identity, "require_source", nothing),
            (barrier, "require_source", nothing),
        ],
    ),
    "a joined session is taken": Bug(
        "session",
        LOST,
        [(sqlalchemy, "_refuse_joined", lambda _: None), (sqlalchemy.SqlAlchemyAdapter, "commit", commit_unseen)],
    ),
    "a driver that does not commit is taken": Bug(
        "session",
        LOST,
        [(sqlalchemy, "_refuse_deaf_commit", lambda _: None), (sqlalchemy.SqlAlchemyAdapter, "commit", commit_unseen)],
    ),
}


@pytest.mark.timeout(1_200)  # the second hunt waits longer at each step
@pytest.mark.parametrize(
    "name", [QUICKEST, *(pytest.param(name, marks=pytest.mark.full) for name in BUGS if name != QUICKEST)]
)
def test_the_machine_finds_a_mend_that_is_taken_out(
    name: str, broker: BrokerProcess, kind_named: Callable[[str], Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = BUGS[name]
    kind = kind_named(bug.kind)
    for where, what, wrong in bug.patches:
        monkeypatch.setattr(where, what, wrong)
    for patience in (2.0, 8.0):  # the longer one is for a machine that has other work as well
        machine = machine_on(broker, kind, patience=patience, wanted=bug.wanted)
        # Flaky: what the mistake leads to may depend on who is quicker, and is not there when it is played once more.
        with suppress(Broken, Flaky):
            run_state_machine_as_test(machine, settings=HUNT)
        if machine.found:
            break
    assert machine.found, f"{machine.histories} histories, and nothing was found"
