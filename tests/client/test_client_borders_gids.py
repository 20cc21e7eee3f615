"""A gid of the user's own that comes again: a retry never undoes what an earlier attempt has committed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from client_support import Bank, messages_in, pay, values_in

import tallystick
from brokers import BrokerProcess
from cutting_proxy import lossy_proxy
from eventually import eventually
from tallystick import CheckBack, errors
from tallystick.client.base.message import outgoing

COMMIT = b"commit"
PAID = 1
LONG = CheckBack(after=600)
"""Nobody is to be asked in these tests: what the broker comes to know, the retry has told it."""


@contextlib.contextmanager
def killed_after_its_local_commit(broker: BrokerProcess, group: str) -> Iterator[tallystick.Client]:
    """A client whose process dies before it can tell the broker of its commits."""
    with lossy_proxy(broker.port) as proxy:
        ts = tallystick.Client(proxy.url, group=group, commit_wait=0.01, timeout=0.3, check=LONG, wait=True)
        proxy.refusing = COMMIT
        yield ts
        ts.close(timeout=0.01)


def attempt(ts: tallystick.Client, bank: Bank, topic: str, gid: str, note: str, **options: Any) -> None:
    """One request: a note, a message and a call, under the name that the user gave it."""
    with bank.connection() as connection, ts.transaction(connection, gid=gid, **options) as tx:
        if options.get("prepare") == "early":
            tx.send(topic, PAID)
            tx.call("http://127.0.0.1:9/never", {"amount": 1})
            tx.prepare()
            bank.note(connection, note)
        else:
            bank.note(connection, note)
            tx.send(topic, PAID)
            tx.call("http://127.0.0.1:9/never", {"amount": 1})


@pytest.mark.parametrize("order", ["late", "early"])
def test_a_retry_finishes_what_was_committed_and_is_told_so(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, order: str
) -> None:
    gid = f"order-17-{group}"
    with killed_after_its_local_commit(broker, group) as first:
        attempt(first, any_bank, topic, gid, "first", prepare=order)
    with tallystick.Client(broker.url, group=group, check=LONG, wait=True) as ts:
        assert ts.outcome(gid) is None
        with pytest.raises(errors.AlreadyCommitted, match="earlier attempt"):
            attempt(ts, any_bank, topic, gid, "second", prepare=order)
        assert ts.outcome(gid) == "committed"
        assert len(ts.calls(gid).calls) == 1
    assert any_bank.notes() == ["first"]
    assert values_in(broker.url, topic) == [PAID]


def test_a_retry_in_outbox_mode_sees_to_it_that_the_row_is_sent(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str
) -> None:
    gid = f"order-18-{group}"
    with lossy_proxy(broker.port) as proxy:
        proxy.refusing = b"send"
        first = tallystick.Client(proxy.url, group=group, commit_wait=0.01, timeout=0.3, wait=True)
        pay(first, any_bank, topic, PAID, gid=gid, mode="outbox")
        first.close(timeout=0.01)
        proxy.refusing = None
        with tallystick.Client(proxy.url, group=group, wait=True) as ts:
            with pytest.raises(errors.AlreadyCommitted):
                pay(ts, any_bank, topic, PAID, gid=gid, mode="outbox", note="second")
            assert any_bank.notes() == ["paid"]
            # A process that has done nothing else: the refusal alone made it look after the outbox.
            eventually(lambda: values_in(broker.url, topic) == [PAID], "the row of the first attempt is sent")


def test_a_duplicate_is_told_before_the_business_stumbles_over_itself(
    ts: tallystick.Client, bank: Bank, topic: str
) -> None:
    """A retry usually meets its own unique keys first. It is to hear that it is done, not that a key is taken."""
    bank.run("create unique index once on ledger (note)")
    gid = ts.new_gid()
    pay(ts, bank, topic, 1, gid=gid)
    with pytest.raises(errors.AlreadyCommitted):
        pay(ts, bank, topic, 1, gid=gid)


def test_attempts_at_the_same_moment_leave_one_row_and_one_message(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str
) -> None:
    told: list[str] = []

    def work(ts: tallystick.Client, number: int, start: threading.Barrier) -> None:
        start.wait()
        for gid in gids:
            try:
                pay(ts, any_bank, topic, int(gid.rpartition("-")[2]), note=gid, gid=gid)
                told.append("done")
            except errors.AlreadyCommitted:
                told.append("duplicate")

    gids = [f"race-{group}-{number}" for number in range(25)]
    start = threading.Barrier(2)
    with (
        tallystick.Client(broker.url, group=group, wait=True) as one,
        tallystick.Client(broker.url, group=group, wait=True) as two,
    ):
        workers = [threading.Thread(target=work, args=(ts, n, start)) for n, ts in enumerate((one, two))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(told) == ["done"] * len(gids) + ["duplicate"] * len(gids)
        assert any_bank.notes() == sorted(gids)
        eventually(lambda: values_in(broker.url, topic) == list(range(len(gids))), "every row has its message")


@pytest.mark.parametrize("order", ["late", "early"])
def test_an_attempt_that_fails_beside_one_that_commits_takes_nothing_back(
    broker: BrokerProcess, any_bank: Bank, topic: str, group: str, order: str
) -> None:
    """Both have prepared the same; the one that fails must not speak for the other."""
    gid = f"order-19-{group}"
    with (
        tallystick.Client(broker.url, group=group, check=LONG, wait=True) as ts,
        any_bank.connection() as connection,
        killed_after_its_local_commit(broker, group) as other,
    ):

        def fail_after_the_other() -> None:
            with ts.transaction(connection, gid=gid, prepare="early") as tx:
                tx.send(topic, PAID)
                tx.call("http://127.0.0.1:9/never", {"amount": 1})
                if any_bank.engine == "sqlite":  # one writer at a time: the other one has to come before
                    attempt(other, any_bank, topic, gid, "theirs", prepare=order)
                    with pytest.raises(errors.AlreadyCommitted):
                        tx.prepare()
                else:
                    tx.prepare()
                    any_bank.note(connection, "ours")
                    connection.rollback()  # the mark is gone, and with it all that kept the other one out
                    attempt(other, any_bank, topic, gid, "theirs", prepare=order)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_after_the_other()
        assert any_bank.notes() == ["theirs"]
        eventually(lambda: ts.outcome(gid) == "committed", "the broker is told what the barrier says")
    assert values_in(broker.url, topic) == [PAID]


def test_a_retry_after_a_failure_before_the_commit_uses_what_was_prepared(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    """The first attempt is killed between prepare and commit; the second says the same, at another time."""
    gid = f"order-20-{group}"
    with tallystick.Client(broker.url, group=group, check=LONG, wait=True) as ts:
        ts.prepare(gid, [outgoing(topic, "paid")], check=LONG)
        pay(ts, bank, topic, "paid", gid=gid)
        assert ts.outcome(gid) == "committed"
        other = f"order-21-{group}"
        ts.prepare(other, [outgoing(topic, "paid")], check=LONG)
        with pytest.raises(errors.DifferentContent):
            pay(ts, bank, topic, "something else", gid=other)
    assert (bank.notes(), [message.text for message in messages_in(broker.url, topic)]) == (["paid"], ["paid"])


def test_a_transaction_is_entered_once(ts: tallystick.Client, bank: Bank, topic: str) -> None:
    with bank.connection() as connection:
        tx = ts.transaction(connection)
        with tx:
            bank.note(connection, "first")
            tx.send(topic, 1)
        with pytest.raises(errors.InvalidRequest, match="entered once"), tx:
            bank.note(connection, "second")
    assert bank.notes() == ["first"]


@pytest.mark.parametrize("mode", ["check-back", "outbox"])
def test_a_named_block_that_sends_nothing_is_done_once_all_the_same(
    ts: tallystick.Client, any_bank: Bank, group: str, mode: Any
) -> None:
    def attempt() -> None:
        with any_bank.connection() as connection, ts.transaction(connection, gid=f"quiet-{group}", mode=mode):
            any_bank.note(connection, "done")

    attempt()
    with pytest.raises(errors.AlreadyCommitted):
        attempt()
    assert any_bank.notes() == ["done"]


def test_a_name_that_is_rolled_back_stays_so_and_the_error_says_it(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    """By hand at the broker, where the barrier knows nothing of it."""
    gid = f"order-22-{group}"
    ts.prepare(gid, [outgoing(topic, 1)], check=LONG)
    ts.rollback(gid)
    with pytest.raises(errors.TransactionFailed, match="rolled_back already"):
        pay(ts, bank, topic, 1, gid=gid)
    with pytest.raises(errors.InvalidRequest, match="gid"):
        pay(ts, bank, topic, 1, gid=17)
    assert (bank.notes(), values_in(broker.url, topic)) == ([], [])
