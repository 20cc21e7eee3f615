"""The machine against mends that are taken out: it must find each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from border_hunt import HUNT, machine_on
from border_kinds import Kind
from hypothesis.stateful import run_state_machine_as_test

from brokers import BrokerProcess
from tallystick.barrier.adapters import sqlalchemy
from tallystick.barrier.errors import AlreadyDecided
from tallystick.barrier.operations import barrier, identity
from tallystick.client import databases, local
from tallystick.client.block import Block
from tallystick.client.core import ClientCore
from tallystick.client.local import LocalTransaction
from tallystick.client.producer import Pinned
from tallystick.client.script import Script
from tallystick.core.errors import TransactionFailed


def nothing(*_: Any, **__: Any) -> Script[None]:
    """In the place of a check."""
    yield from ()


def never_asked(_: Block) -> Script[str]:
    yield from ()
    return "rolled_back"


def stop_as_before(block: Block, decided: AlreadyDecided) -> Script[None]:
    """A gid that has an outcome is an error like any other."""
    yield from block.local.give_up()
    if block.pinned is not None:
        yield from block._mode.withdraw(block, block.pinned)
    raise TransactionFailed(decided.detail)


async def choose_only(core: ClientCore, source: str, gid: str | None) -> Pinned:
    return await core.runtime().producer.choose(gid)


def commit_unseen(adapter: sqlalchemy.SqlAlchemyAdapter) -> None:
    adapter._owner.commit()


Patch = tuple[Any, str, Callable[..., Any]]

BUGS: dict[str, tuple[str, list[Patch]]] = {
    "the tether is not required (sqlite3)": ("sqlite", [(LocalTransaction, "require", nothing)]),
    "the tether is not required (PostgreSQL)": ("psycopg", [(LocalTransaction, "require", nothing)]),
    "the tether is not required (MariaDB)": ("pymysql", [(LocalTransaction, "require", nothing)]),
    "the tether is not required (Session)": ("session", [(LocalTransaction, "require", nothing)]),
    "a handler's tether is not required (inbox, offset)": (
        "sqlite",
        [(LocalTransaction, "end", LocalTransaction.commit)],
    ),
    "a handler's deadlock goes unnoticed": ("pymysql", [(LocalTransaction, "end", LocalTransaction.commit)]),
    "nested blocks are not refused": ("psycopg", [(local, "_refuse_second", nothing)]),
    "a block that fails tells Rollback without asking the barrier": ("psycopg", [(Block, "_decided", never_asked)]),
    "a retry of what is committed rolls it back": (
        "sqlite",
        [(Block, "_refuse_decided", nothing), (Block, "_stop", stop_as_before), (Block, "_decided", never_asked)],
    ),
    "schema and identity are not part of the source": (
        "psycopg",
        [(identity.Whereabouts, "source", lambda _, address: address)],
    ),
    "a way in leads to the connection's first schema, and nobody looks": (
        "pymysql",
        [
            (databases.Door, "lead", lambda _, adapter: adapter),
            (identity, "require_source", nothing),
            (barrier, "require_source", nothing),
        ],
    ),
    "the outbox is not looked after before the commit": ("sqlite", [(ClientCore, "choose_for_outbox", choose_only)]),
    "a joined session is taken": (
        "session",
        [(sqlalchemy, "_refuse_joined", lambda _: None), (sqlalchemy.SqlAlchemyAdapter, "commit", commit_unseen)],
    ),
    "a driver that does not commit is taken": (
        "session",
        [(sqlalchemy, "_refuse_deaf_commit", lambda _: None), (sqlalchemy.SqlAlchemyAdapter, "commit", commit_unseen)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_finds_a_mend_that_is_taken_out(
    bug: str, broker: BrokerProcess, kind_named: Callable[[str], Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, patches = BUGS[bug]
    machine = machine_on(broker, kind_named(kind), patience=2.0)
    for where, name, wrong in patches:
        monkeypatch.setattr(where, name, wrong)
    with suppress(Exception):
        run_state_machine_as_test(machine, settings=HUNT)
    assert machine.found, f"{machine.histories} histories, and nothing was found"
    print(machine.histories, machine.found)
