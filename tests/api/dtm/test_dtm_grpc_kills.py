"""The broker killed with -9 around the steps of a transaction that came by gRPC: what it accepted is carried out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from brokers import BrokerProcess, running_broker
from busi_grpc import FAILURE, Answer, Busi, busi_service
from dtm_grpc import GrpcClient, Refused

pytestmark = pytest.mark.fault

QUICK = {"check_interval": "300ms", "check_interval_cap": "1s", "check_timeout": "2s"}
SOON = {"TimeoutToFail": 1, "RetryInterval": 1}
# The lease of a call that was under way ends with its time; then it is made again.
SHORT = {"RequestTimeout": 1, "RetryInterval": 1}


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    with running_broker(grpc=True, **QUICK) as running:
        yield running


@pytest.fixture
def dtm(broker: BrokerProcess) -> Iterator[GrpcClient]:
    with GrpcClient(broker) as client:
        yield client


@pytest.fixture
def busi() -> Iterator[Busi]:
    with busi_service() as running:
        yield running


def transfer(busi: Busi) -> list[tuple[str, bytes]]:
    return [(busi.url("TransOut"), b"30"), (busi.url("TransIn"), b"30")]


def test_between_prepare_and_submit(broker: BrokerProcess, dtm: GrpcClient, busi: Busi) -> None:
    dtm.prepare("half", transfer(busi), busi.url("CanSubmit"))
    broker.kill()
    broker.restart()
    assert dtm.status("half") == "prepared"
    dtm.submit("half", transfer(busi), busi.url("CanSubmit"))
    dtm.wait_status("half", "succeed")
    assert [one.method for one in busi.calls("half")] == ["TransOut", "TransIn"]


def test_after_prepare_with_a_producer_that_never_comes_back(
    broker: BrokerProcess, dtm: GrpcClient, busi: Busi
) -> None:
    for gid, place in (("kept", "Kept"), ("dropped", "Dropped")):
        dtm.prepare(gid, transfer(busi), busi.url(place), **SOON)
    busi.answers("Dropped", FAILURE)
    broker.kill()
    broker.restart()
    dtm.wait_status("kept", "succeed")
    dtm.wait_status("dropped", "failed")
    assert [one.method for one in busi.calls("kept")] == ["Kept", "TransOut", "TransIn"]
    assert [one.method for one in busi.calls("dropped")] == ["Dropped"]


def test_during_a_check_back(broker: BrokerProcess, dtm: GrpcClient, busi: Busi) -> None:
    slow = threading.Event()
    busi.answers("CanSubmit", Answer(after=slow))
    dtm.prepare("asked", transfer(busi), busi.url("CanSubmit"), **SOON)
    busi.wait_for("asked", 1, "CanSubmit")
    broker.kill()
    slow.set()
    broker.restart()
    dtm.wait_status("asked", "succeed", 40)
    assert {one.method for one in busi.calls("asked")} == {"CanSubmit", "TransOut", "TransIn"}


def test_during_a_call(broker: BrokerProcess, dtm: GrpcClient, busi: Busi) -> None:
    slow = threading.Event()
    busi.answers("TransIn", Answer(after=slow))
    dtm.submit("called", transfer(busi), **SHORT)
    busi.wait_for("called", 1, "TransIn")
    broker.kill()
    slow.set()
    broker.restart()
    dtm.wait_status("called", "succeed", 40)
    methods = [one.method for one in busi.calls("called")]
    assert methods == ["TransOut", "TransIn", "TransIn"]  # nobody knows what became of the second: it is made again


def test_while_a_client_waits_for_the_result(broker: BrokerProcess, dtm: GrpcClient, busi: Busi) -> None:
    slow = threading.Event()
    busi.answers("TransOut", Answer(after=slow))
    refused: list[str] = []

    def submit() -> None:
        with GrpcClient(broker) as client:
            try:
                client.submit("waited", transfer(busi), WaitResult=True, **SHORT)
            except Refused as error:
                refused.append(error.code)

    waiting = threading.Thread(target=submit)
    waiting.start()
    busi.wait_for("waited", 1)
    broker.kill()
    slow.set()
    waiting.join(20)
    assert refused == ["UNAVAILABLE"]  # the client cannot know; it may submit again
    broker.restart()
    dtm.wait_status("waited", "succeed", 40)


def test_under_load_everything_that_was_accepted_is_called(broker: BrokerProcess, busi: Busi) -> None:
    """Clients prepare and submit, and repeat what got no answer; the broker dies four times meanwhile."""
    accepted = load(broker, busi, kills=4)
    assert len(accepted) > 20
    assert undelivered(broker, busi, accepted, 60) == set()
    assert "Traceback" not in broker.log_text()


FORGETFUL = """
from tallystick.api.dtm.engine import Dtm
async def submit(self, trans, *rest, carry_out=Dtm.submit):
    if not trans.gid.endswith("3"):
        await carry_out(self, trans, *rest)
Dtm.submit = submit
"""


@pytest.mark.full
def test_a_broker_that_forgets_what_it_accepted_would_be_found_out(busi: Busi) -> None:
    with running_broker(grpc=True, prelude=FORGETFUL, **QUICK) as broker:
        accepted = load(broker, busi, kills=0)
        forgotten = {gid for gid in accepted if gid.endswith("3")}
        assert forgotten
        assert undelivered(broker, busi, accepted, 3) == forgotten


def load(broker: BrokerProcess, busi: Busi, kills: int) -> set[str]:
    """What was accepted of the work of four clients."""
    accepted: set[str] = set()
    stop = threading.Event()
    workers = [
        threading.Thread(target=keep_submitting, args=(broker, busi, number, accepted, stop)) for number in range(4)
    ]
    for worker in workers:
        worker.start()
    for _ in range(kills):
        time.sleep(0.7)
        broker.kill()
        broker.restart()
    time.sleep(0.5)
    stop.set()
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive()
    return accepted


def undelivered(broker: BrokerProcess, busi: Busi, accepted: set[str], seconds: float) -> set[str]:
    """Those that were not finished and called within the time."""
    deadline = time.monotonic() + seconds
    left = set(accepted)
    with GrpcClient(broker) as dtm:
        while left and time.monotonic() < deadline:
            left = {gid for gid in left if dtm.status(gid) != "succeed"}
    return left | {gid for gid in accepted if not {"TransOut", "TransIn"} <= {one.method for one in busi.calls(gid)}}


def keep_submitting(broker: BrokerProcess, busi: Busi, number: int, accepted: set[str], stop: threading.Event) -> None:
    with GrpcClient(broker) as client:
        turn = 0
        while not stop.is_set():
            gid, turn = f"load-{number}-{turn}", turn + 1
            if turn % 2:
                until_answered(client.prepare, gid, transfer(busi), busi.url("CanSubmit"), **SHORT)
            check = busi.url("CanSubmit") if turn % 2 else ""
            until_answered(client.submit, gid, transfer(busi), check, **SHORT)
            accepted.add(gid)


def until_answered(act: object, *given: object, **options: object) -> None:
    """Repeat what got no answer, as dtm's clients do. A repeated submit of what is finished is told so: it is done."""
    while True:
        try:
            act(*given, **options)  # type: ignore[operator]
            return
        except Refused as refused:
            if "current status 'succeed'" in refused.text or "current status 'submitted'" in refused.text:
                return
            if refused.code != "UNAVAILABLE":
                raise
            time.sleep(0.05)
