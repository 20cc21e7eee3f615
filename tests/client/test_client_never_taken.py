"""What no broker will ever take is refused before the local commit, in every mode, and by the same error.

In outbox mode the broker hears of a message after the commit: a row that it can only refuse would stay for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from client_support import Bank

import tallystick
from brokers import BrokerProcess, running_broker
from tallystick import CallOptions, errors
from tallystick.core.limits import Limits

URL = "http://127.0.0.1:9/x"
DAY = 86_400
LIMITS = Limits(message_bytes=40_000, request_bytes=100_000, transaction_messages=20)

Work = Callable[[tallystick.Transaction], object]

NEVER: dict[str, Work] = {
    "a time in milliseconds": lambda tx: tx.send("t", "x", deliver_at=time.time() * 1000),
    "a time that no number holds": lambda tx: tx.send("t", "x", deliver_at=1e300),
    "a delay beyond a year": lambda tx: tx.send("t", "x", delay=367 * DAY),
    "65 headers": lambda tx: tx.send("t", "x", headers={f"h{number}": "v" for number in range(65)}),
    "a header without a name": lambda tx: tx.send("t", "x", headers={"": "v"}),
    "a long header": lambda tx: tx.send("t", "x", headers={"a": "v" * 8_193}),
    "a long tag": lambda tx: tx.send("t", "x", tag="t" * 129),
    "a long key": lambda tx: tx.send("t", "x", key="k" * 1_025),
    "half a character": lambda tx: tx.send("t", "x", key="\ud800"),
    "a large message": lambda tx: tx.send("t", b"x" * (LIMITS.message_bytes + 1)),
    "many messages": lambda tx: [tx.send("t", "x") for _ in range(LIMITS.transaction_messages + 1)],
    "a large request": lambda tx: [tx.send("t", b"x" * (LIMITS.message_bytes - 9)) for _ in range(3)],
    "a large request of calls": lambda tx: [tx.call(URL, b"x" * (LIMITS.message_bytes - 9)) for _ in range(3)],
    "a call for 601 seconds": lambda tx: tx.call(URL, "x", timeout=601),
    "a call for no time": lambda tx: tx.call(URL, "x", timeout=0),
    "a call in more than a year": lambda tx: tx.call(URL, "x", delay=367 * DAY),
    "a header of the broker's": lambda tx: tx.call(URL, "x", headers={"Host": "e"}),
    "a header of two lines": lambda tx: tx.call(URL, "x", headers={"a": "b\r\nc"}),
    "a header not in Latin-1": lambda tx: tx.call(URL, "x", headers={"a": "\u20ac"}),
    "a header's name with a space": lambda tx: tx.call("grpc://127.0.0.1:9/a.B/C", b"x", headers={"A B": "x"}),
    "65 headers of a call": lambda tx: tx.call(URL, "x", headers={f"h{number}": "v" for number in range(65)}),
    "a long branch": lambda tx: tx.call(URL, "x", branch="b" * 65),
    "an odd branch": lambda tx: tx.call(URL, "x", branch="a b/\n"),
    "one branch twice": lambda tx: (tx.call(URL, "x", branch="b"), tx.call(URL, "x", branch="b")),
    "one branch by its place": lambda tx: (tx.call(URL, "x", branch="02"), tx.call(URL, "x")),
    "another scheme": lambda tx: tx.call("ftp://x/", "x"),
    "a long URL": lambda tx: tx.call(URL + "a" * 3_000, "x"),
    "a URL with a space": lambda tx: tx.call("http://127.0.0.1:9/a b", "x"),
    "a URL with a user": lambda tx: tx.call("http://me@127.0.0.1:9/", "x"),
    "a URL without a host": lambda tx: tx.call("http:///x", "x"),
    "a port that is none": lambda tx: tx.call("http://127.0.0.1:99999/", "x"),
    "gRPC without a port": lambda tx: tx.call("grpc://127.0.0.1/a.B/C", b"x"),
    "a call topic that has no name": lambda tx: tx.call("topic://", "x"),
    "a large body": lambda tx: tx.call(URL, b"x" * (LIMITS.message_bytes + 1)),
    "another protocol": lambda tx: tx.call(URL, "x", protocol="smtp"),  # type: ignore[arg-type]
    "many calls": lambda tx: [tx.call(URL, "x") for _ in range(LIMITS.transaction_messages + 1)],
}
OPTIONS = {
    "again in more than a year": CallOptions(retry=367 * DAY),
    "again before": CallOptions(retry=-1),
    "no attempt": CallOptions(max_attempts=0),
    "endless attempts": CallOptions(max_attempts=10**7),
    "attempts that no number holds": CallOptions(max_attempts=10**30),
    "again after no number": CallOptions(retry=float("nan")),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(
        max_message_bytes=LIMITS.message_bytes,
        max_request_bytes=LIMITS.request_bytes,
        max_transaction_messages=LIMITS.transaction_messages,
    ) as process:
        yield process


def run(ts: tallystick.Client, bank: Bank, mode: str, work: Work, options: dict[str, Any]) -> None:
    with bank.connection() as connection, ts.transaction(connection, mode=mode, **options) as tx:
        bank.note(connection, "never")
        work(tx)


def refusal(ts: tallystick.Client, bank: Bank, mode: str, work: Work, **options: Any) -> type[BaseException]:
    with pytest.raises(errors.TallystickError) as refused:
        run(ts, bank, mode, work, options)
    assert not refused.value.retryable
    return refused.type


@pytest.mark.parametrize("work", NEVER.values(), ids=list(NEVER))
def test_every_mode_refuses_alike_what_no_broker_takes(ts: tallystick.Client, bank: Bank, work: Work) -> None:
    ts.info()  # its limits are known from here on
    assert refusal(ts, bank, "outbox", work) is refusal(ts, bank, "check-back", work)
    assert bank.notes() == []
    assert bank.rows("select gid from tallystick_outbox") == []


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("mode", ["outbox", "check-back"])
def test_options_that_no_broker_takes_are_refused(
    ts: tallystick.Client, bank: Bank, mode: str, options: CallOptions
) -> None:
    assert refusal(ts, bank, mode, lambda tx: tx.call(URL, "x"), call_options=options) is errors.InvalidRequest
    assert bank.notes() == []


def test_a_request_that_just_fits_is_taken_in_every_mode(ts: tallystick.Client, bank: Bank, topic: str) -> None:
    ts.info()
    for mode in ("outbox", "check-back"):
        with bank.connection() as connection, ts.transaction(connection, mode=mode) as tx:
            bank.note(connection, mode)
            tx.send(topic, b"x" * LIMITS.message_bytes)
            tx.send(topic, b"x" * LIMITS.message_bytes)
            tx.send(topic, b"x" * (LIMITS.request_bytes - 2 * LIMITS.message_bytes - 1_000))
    assert bank.notes() == ["check-back", "outbox"]


def test_two_call_topics_may_have_one_branch_until_their_subscribers_are_known(
    ts: tallystick.Client, bank: Bank
) -> None:
    """Whether they collide depends on the subscribers, which may still change: that is for the broker to say."""
    with bank.connection() as connection, ts.transaction(connection, mode="outbox") as tx:
        bank.note(connection, "kept")
        tx.call("topic://first", "x", branch="b")
        tx.call("topic://second", "x", branch="b")
    assert bank.notes() == ["kept"]
