"""A real broker process killed at every write and every fsync of its log while it takes, makes and finishes calls."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from broker_script import Broken
from broker_tracer import injected, newest_log
from call_doors import Door, DtmDoor, NativeDoor, calls_view
from call_history import CallHistory, violations
from call_service import Arrival, Service, running

from brokers import BrokerProcess, running_broker
from raw_client import Gone, RawClient

pytestmark = [pytest.mark.fault, pytest.mark.timeout(400)]

FAST = {
    "check_timeout": "500ms",
    "check_interval": "50ms",
    "check_interval_cap": "100ms",
    "max_checks": 10_000,
    "call_retry_first": "20ms",
    "call_retry_cap": "50ms",
    "call_probe": "20ms",
    "call_probe_cap": "50ms",
    "log_level": "warning",
}
BRANCHES = ["01", "02", "03"]
# What a check-back is told; of the others it is told nothing.
TRUTH = {"asked-yes": 200, "asked-no": 409}


class Sender:
    """Does one thing after the other, and each again until it is answered."""

    def __init__(self, service: Service, start: Callable[[], RawClient], mend: Callable[[], None]) -> None:
        self.service, self.history, self.deaths = service, CallHistory(), 0
        self._start, self._mend = start, mend
        self.client = start()

    def run(self) -> None:
        for number, gid in enumerate(("native", "dtm", "concurrent", "dtm-unprepared")):
            if gid != "dtm-unprepared":
                self.prepare(gid, dtm=number == 1, concurrent=gid == "concurrent")
            self.submit(gid, dtm=number in (1, 3))
            self.wait(gid, "done")
        for gid, dtm in (("aborted", False), ("dtm-aborted", True)):
            self.prepare(gid, dtm)
            self.history.told[gid] = self.until_answered(lambda gid=gid, dtm=dtm: self.door(dtm).abort(gid))
        for gid, dtm in (("asked-yes", False), ("asked-no", True)):
            self.prepare(gid, dtm)
        self.wait("asked-yes", "done")
        self.wait("asked-no", "dropped")
        self.history.told |= {"asked-yes": "ok", "asked-no": "failed"}

    def door(self, dtm: bool) -> Door:
        if not dtm:
            return NativeDoor(self.client, self.service, 100)
        door = DtmDoor(self.client, self.service)
        door.known = {gid: door.request(gid, BRANCHES) for gid in ("dtm", "dtm-unprepared")}
        return door

    def prepare(self, gid: str, dtm: bool, concurrent: bool = False) -> None:
        self.history.branches[gid] = BRANCHES
        if concurrent:
            self.history.concurrent.add(gid)
        self.until_answered(lambda: self.door(dtm).prepare(gid, BRANCHES, concurrent))

    def submit(self, gid: str, dtm: bool) -> None:
        self.history.branches[gid] = BRANCHES
        self.history.told[gid] = self.until_answered(lambda: self.door(dtm).submit(gid))

    def wait(self, gid: str, state: str) -> None:
        deadline = time.monotonic() + 120
        while self.until_answered(lambda: self.look(gid)) != state:
            assert time.monotonic() < deadline, f"{gid} is not {state}"
            time.sleep(0.01)

    def look(self, gid: str) -> str | None:
        try:
            view = calls_view(self.client, gid)
        except (*Gone, AssertionError) as error:
            raise Broken from error
        number = self.service.next_number()
        for call in view["calls"] if view else ():
            if call["state"] == "done":
                self.history.saw_done(gid, call["branch"], number)
        return view["state"] if view else None

    def until_answered(self, ask: Callable) -> object:
        while True:
            try:
                return ask()
            except Broken:
                self.deaths += 1
                self._mend()
                self.client = self._start()


def badly_at_first(arrival: Arrival) -> int:
    """Each second call needs two tries."""
    return 500 if arrival.branch == "02" and arrival.attempt == 1 else 200


@pytest.mark.parametrize("call", [pytest.param("write", marks=pytest.mark.full), "fdatasync"])
def test_killed_again_and_again_until_every_call_is_made(tmp_path: Path, call: str) -> None:
    """Each life of the broker ends at one of its next writes (or fsyncs) of the log."""
    lives, faults = itertools.cycle((2, 3, 4, 6)), ExitStack()
    service = Service(badly_at_first, lambda gid: TRUTH.get(gid, 425))
    with running(service), running_broker(tmp_path, start=False, **FAST) as broker, faults:

        def start() -> RawClient:
            broker.start()
            faults.enter_context(injected(broker, f"{call}:signal=KILL:when={next(lives)}", newest_log(broker)))
            return faults.enter_context(RawClient(broker.url, timeout=20))

        def mend() -> None:
            broker.wait()
            faults.close()

        sender = Sender(service, start, mend)
        sender.run()
        faults.close()
        states = states_after_a_last_kill(broker, sender)
    assert violations(sender.history, service.arrivals, states) == []
    assert sender.deaths > 10


def states_after_a_last_kill(broker: BrokerProcess, sender: Sender) -> dict[str, str | None]:
    """What the store itself holds, and time for a call that should not come."""
    broker.kill()
    broker.start()
    time.sleep(0.5)
    with RawClient(broker.url) as client:
        views = {gid: calls_view(client, gid) for gid in sender.history.branches}
    return {gid: view["state"] if view else None for gid, view in views.items()}
