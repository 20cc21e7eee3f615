"""The end of a broker: SIGTERM drains, nothing that was accepted is lost."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from brokers import BrokerProcess, running_broker
from raw_client import Gone, RawClient
from tallystick.core.errors import TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Prepare, Send


def message() -> OutgoingMessage:
    return OutgoingMessage("orders", b"x")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(number: signal.Signals) -> None:
    with running_broker() as broker, RawClient(broker.url) as client:
        client.do(Prepare("half", "shop", [message()]))
        client.do(Send([message()], "sent"))
        broker.process.send_signal(number)  # type: ignore[union-attr]
        assert broker.wait() == 0
        assert "draining" in broker.log_text()
        assert "Traceback" not in broker.log_text()
        broker.start()
        client.close()
        views = [client.transaction(gid) for gid in ("half", "sent")]
        assert [view.state if view else None for view in views] == ["prepared", "committed"]


def test_long_polls_go_home_at_once(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        with RawClient(broker.url) as client:
            client.json("PUT", "/v1/topics/orders", {"queues": 1})
        answers: dict[str, object] = {}
        polls = [
            threading.Thread(target=ask, args=(broker, answers, "receive")),
            threading.Thread(target=ask, args=(broker, answers, "fetch")),
            threading.Thread(target=ask, args=(broker, answers, "checks")),
        ]
        for poll in polls:
            poll.start()
        time.sleep(1.5)
        assert broker.stop() == 0
        for poll in polls:
            poll.join(5)
        assert answers == {"receive": [], "fetch": ([], 0, 0), "checks": []}


def ask(broker: BrokerProcess, answers: dict[str, object], kind: str) -> None:
    with RawClient(broker.url) as client:
        if kind == "receive":
            answers[kind] = client.receive("g", "orders", wait_ms=30_000)
        elif kind == "fetch":
            answers[kind] = client.read("orders", 0, wait_ms=30_000)
        else:
            answers[kind] = client.poll_checks("shop", wait_ms=30_000)


def test_what_is_under_way_is_finished_and_what_was_confirmed_is_there(tmp_path: Path) -> None:
    """Several clients send as fast as they can while the broker is told to end, three times."""
    with running_broker(tmp_path) as broker:
        confirmed: set[str] = set()
        for turn in range(3):
            refusals: list[str] = []
            stop = threading.Event()
            workers = [
                threading.Thread(target=keep_sending, args=(broker, f"{turn}-{number}", confirmed, refusals, stop))
                for number in range(4)
            ]
            for worker in workers:
                worker.start()
            time.sleep(0.4)
            assert broker.stop() == 0
            stop.set()
            for worker in workers:
                worker.join(10)
            assert set(refusals) <= {"draining"}, refusals
            broker.start()
        with RawClient(broker.url) as client:
            found = [one.gid for one in client.messages("orders")]
        assert len(found) == len(set(found))
        assert confirmed <= set(found)
        assert confirmed


def keep_sending(
    broker: BrokerProcess, name: str, confirmed: set[str], refusals: list[str], stop: threading.Event
) -> None:
    with RawClient(broker.url, timeout=5) as client:
        number = 0
        while not stop.is_set():
            number += 1
            gid = f"{name}-{number}"
            try:
                client.do(Send([message()], gid))
                confirmed.add(gid)
            except TallystickError as error:
                refusals.append(error.code)
            except Gone:
                return


def test_a_draining_broker_is_not_ready_and_takes_no_new_messages_but_finishes(tmp_path: Path) -> None:
    """Seen from connections that were there before: new ones are not accepted any more."""
    with running_broker(tmp_path, drain_timeout="20s") as broker, RawClient(broker.url) as client:
        client.do(Prepare("half", "shop", [message()]))
        holder = threading.Thread(target=slow_upload, args=(broker,))
        holder.start()
        time.sleep(0.4)
        codes: list[str] = []
        broker.terminate()
        while not codes:
            try:
                client.do(Send([message()]))
            except TallystickError as error:
                codes.append(error.code)
            except Gone:
                codes.append("closed")
        assert codes[0] in ("draining", "closed")
        holder.join(15)
        assert broker.wait() == 0


def slow_upload(broker: BrokerProcess) -> None:
    """A request whose body takes a second to arrive."""

    def body() -> object:
        yield b'{"messages": [{"topic": "orders", '
        time.sleep(1)
        yield b'"value": "slow"}]}'

    with RawClient(broker.url) as client:
        try:
            answer = client.request("POST", "/v1/messages", body(), {"Content-Type": "application/json"})
        except Gone:
            return
        assert answer.status in (201, 503)
