"""Disks that fill up or fail while the results of calls are written: no call is lost, and none is made out of order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from broker_script import Broken
from broker_tracer import injected, newest_log
from call_doors import NativeDoor, calls_state, eventually_answered
from call_history import CallHistory, body_of, violations
from call_service import Arrival, Service, running
from disks import fill

from brokers import BrokerProcess, running_broker
from raw_client import RawClient
from tallystick.core.calls import OutgoingCall
from tallystick.core.ops import Send

pytestmark = pytest.mark.fault

FAST = {
    "call_timeout": "1m",
    "call_retry_first": "50ms",
    "call_retry_cap": "200ms",
    "call_probe": "50ms",
    "call_probe_cap": "200ms",
}
BRANCHES = ["01", "02"]


def send_many(broker: BrokerProcess, service: Service, count: int) -> list[str]:
    gids = [f"t{number}" for number in range(count)]
    with RawClient(broker.url) as client:
        for gid in gids:
            calls = [OutgoingCall(f"{service.url}/{one}", body_of(gid, one)) for one in BRANCHES]
            client.do(Send([], gid, calls=calls))
    return gids


def all_done(broker: BrokerProcess, gids: list[str]) -> bool:
    with RawClient(broker.url) as client:
        return all(calls_state(client, gid) == "done" for gid in gids)


def write_more(broker: BrokerProcess, service: Service) -> None:
    """In case what the calls themselves wrote was too little to meet the fault."""
    with RawClient(broker.url) as client:
        for number in range(1_000):
            NativeDoor(client, service, 3_600_000).prepare(f"more{number}", BRANCHES)
            time.sleep(0.02)


def ready(broker: BrokerProcess) -> bool:
    return broker.get("/readyz") == 200


@pytest.mark.parametrize("killed", [False, True], ids=["there is room again", "killed and there is room again"])
def test_a_disk_that_fills_up_while_results_are_written(tmp_path: Path, small_disk: Path, killed: bool) -> None:
    """The calls have been made; that they are done cannot be written. Their results are kept until it can be."""
    sent, filled, one_at_a_time = threading.Event(), threading.Event(), threading.Lock()

    def answer(arrival: Arrival) -> int:
        """Of all second calls none is answered before the disk is full."""
        sent.wait(30)
        with one_at_a_time:
            if arrival.branch == "02" and not filled.is_set():
                with contextlib.suppress(OSError):  # the broker may take the last bytes
                    fill(small_disk, 0)
                filled.set()
        return 200

    with running(Service(answer)) as service, running_broker(tmp_path, data_dir=small_disk / "data", **FAST) as broker:
        gids = send_many(broker, service, 150)
        sent.set()
        eventually_answered(filled.is_set, "the disk is full")
        eventually_answered(lambda: not ready(broker), "the store has stopped")
        if killed:
            broker.kill()
        (small_disk / "ballast").unlink()
        if killed:
            broker.start()
        eventually_answered(lambda: all_done(broker, gids), "everything is done")
        assert ready(broker)
    history = CallHistory(dict.fromkeys(gids, BRANCHES), told=dict.fromkeys(gids, "ok"))
    assert violations(history, service.arrivals, dict.fromkeys(gids, "done")) == []
    times = Counter((one.gid, one.branch) for one in service.arrivals)
    if not killed:
        assert set(times.values()) == {1}, "a call was made again although its result was known"


@pytest.mark.parametrize("fault", ["fdatasync:error=EIO", "write:error=EIO"])
@pytest.mark.parametrize("when", [1, 2, 3])
def test_a_disk_that_fails_while_results_are_written(tmp_path: Path, fault: str, when: int) -> None:
    """The store stops for good; after a restart the call is made again if its result was not durable."""
    arrived, broken = threading.Event(), threading.Event()

    def answer(_: Arrival) -> int:
        arrived.set()
        broken.wait(30)
        return 200

    with running(Service(answer)) as service, running_broker(tmp_path, **FAST) as broker:
        with RawClient(broker.url) as client:
            door = NativeDoor(client, service, 3_600_000)
            for gid in ("a", "b", "held"):
                door.prepare(gid, BRANCHES)
            for gid in ("a", "b"):
                door.submit(gid)
        assert arrived.wait(20)
        with injected(broker, f"{fault}:when={when}", newest_log(broker)):
            broken.set()
            with pytest.raises(Broken):
                write_more(broker, service)
            eventually_answered(lambda: not ready(broker), "the store has stopped")
        made = list(service.arrivals)
        broker.kill()
        broker.start()
        eventually_answered(lambda: all_done(broker, ["a", "b"]), "everything is done")
        with RawClient(broker.url) as client:
            assert calls_state(client, "held") == "held"
    history = CallHistory(dict.fromkeys(("a", "b"), BRANCHES), told={"a": "ok", "b": "ok"})
    assert violations(history, service.arrivals, {"a": "done", "b": "done"}) == []
    times = Counter((one.gid, one.branch) for one in service.arrivals)
    assert max(times.values()) <= 2
    assert {(one.gid, one.branch) for one in service.arrivals if times[one.gid, one.branch] == 2} <= {
        (one.gid, one.branch) for one in made
    }
