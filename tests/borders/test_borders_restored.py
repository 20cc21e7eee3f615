"""An old copy of the service's database is put back: what each kind of bookkeeping makes of it. And its clock."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from borders_support import COMMIT, Service
from client_support import Bank

import tallystick
from cutting_proxy import lossy_proxy
from eventually import eventually
from raw_client import RawClient


def snapshot(bank: Bank) -> Path:
    copy = bank.path.with_suffix(".copy")
    with contextlib.closing(sqlite3.connect(bank.path)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def restore(bank: Bank, copy: Path) -> None:
    shutil.copyfile(copy, bank.path)


def paid(service: Service, ts: tallystick.Client, note: str, **options: Any) -> str:
    with service.bank.connection() as connection, ts.transaction(connection, **options) as tx:
        service.bank.note(connection, note)
        tx.send(service.topic, note)
    return tx.gid


def test_a_check_back_tells_what_the_restored_database_says(sqlite_service: Service) -> None:
    """A commit that no broker has heard of is undone on both sides; a message that was sent stays sent."""
    service = sqlite_service
    paid(service, service.ts, "before")
    copy = snapshot(service.bank)
    paid(service, service.ts, "told")
    with lossy_proxy(service.broker.port) as proxy:
        proxy.refusing = COMMIT
        dead = tallystick.Client(
            proxy.url, group=service.group, commit_wait=0.01, timeout=0.3, check_after=600, wait=True
        )
        gid = paid(service, dead, "untold")
        dead.close(timeout=0.01)
    restore(service.bank, copy)
    with RawClient(service.broker.url) as raw:
        raw.json("POST", f"/v1/transactions/{gid}/hurry")
    eventually(lambda: service.ts.outcome(gid) == "rolled_back", "the restored database is asked")
    assert service.bank.notes() == ["before"]
    assert service.messages() == ["before", "told"]


def test_an_outbox_row_that_comes_back_is_not_sent_twice(sqlite_service: Service) -> None:
    service = sqlite_service
    with lossy_proxy(service.broker.port) as proxy:
        proxy.refusing = b"\xa4send"
        dead = tallystick.Client(proxy.url, group=service.group, commit_wait=0.01, timeout=0.3, wait=True)
        paid(service, dead, "in the outbox", mode="outbox")
        copy = snapshot(service.bank)
        dead.close(timeout=0.01)
    service.ts.redrive(service.bank.open, every=0.2)
    service.agrees_on("in the outbox")
    restore(service.bank, copy)
    assert service.bank.rows("select gid from tallystick_outbox") != []
    service.agrees_on("in the outbox")


def test_a_gid_of_ones_own_that_the_database_has_forgotten_is_refused_by_the_broker(sqlite_service: Service) -> None:
    """Nothing is done a second time, and nothing is put back by itself: the row is missing, and the block says so."""
    service, gid = sqlite_service, f"order-{sqlite_service.group}"
    copy = snapshot(service.bank)
    paid(service, service.ts, "order", gid=gid)
    restore(service.bank, copy)
    with pytest.raises(tallystick.TransactionFailed, match="committed already"):
        paid(service, service.ts, "order", gid=gid)
    assert service.bank.notes() == []
    assert service.messages() == ["order"]


def test_in_outbox_mode_it_runs_again_and_its_messages_are_not_sent_twice(sqlite_service: Service) -> None:
    service, gid = sqlite_service, f"order-{sqlite_service.group}"
    copy = snapshot(service.bank)
    paid(service, service.ts, "order", gid=gid, mode="outbox")
    restore(service.bank, copy)
    paid(service, service.ts, "order", gid=gid, mode="outbox")
    service.agrees_on("order")


@pytest.mark.parametrize(("by", "again"), [("inbox", ["first"]), ("offset", ["first", "second"])])
def test_effects_that_went_with_the_copy_come_back_by_offset_and_not_by_inbox(
    sqlite_service: Service, by: str, again: list[str]
) -> None:
    service = sqlite_service
    consume_until(service, by, "first", lambda: service.bank.notes() == ["first"])
    copy = snapshot(service.bank)
    consume_until(service, by, "second", lambda: service.bank.notes() == ["first", "second"])
    restore(service.bank, copy)
    # "third" shows that the group has gone past the second, one way or the other.
    consume_until(service, by, "third", lambda: "third" in service.bank.notes())
    assert service.bank.notes() == [*again, "third"]


def consume_until(service: Service, by: Any, message: str, seen: Callable[[], bool]) -> None:
    with tallystick.Client(service.broker.url) as ts:

        @ts.subscribe(service.topic, group=service.group, exactly_once=service.bank.open, by=by, start="earliest")
        def handle(message: tallystick.Message, connection: Any) -> None:
            service.bank.note(connection, message.text)

        ts.start()
        ts.send(service.topic, message, key="one queue")
        eventually(seen, f"the effect of {message}")
        ts.stop()


# The clock


def test_an_outbox_row_from_the_future_is_sent_all_the_same(sqlite_service: Service) -> None:
    """The clock of the database was set back after it was written: its age says nothing, for as long as the step."""
    service = sqlite_service
    with lossy_proxy(service.broker.port) as proxy:
        proxy.refusing = b"\xa4send"
        dead = tallystick.Client(proxy.url, group=service.group, commit_wait=0.01, timeout=0.3, wait=True)
        paid(service, dead, "in the outbox", mode="outbox")
        dead.close(timeout=0.01)
    service.bank.run("update tallystick_outbox set touched_at = '2999-01-01 00:00:00.000'")
    service.ts.redrive(service.bank.open, every=0.2)
    service.agrees_on("in the outbox")
