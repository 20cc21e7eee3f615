"""A producer stopped (SIGSTOP) at every step for three times the check-back's time, then woken to go on.

The broker asks while it sleeps. The barrier lets exactly one of them in: the check-back blocks on the row that the
sleeper holds, or takes the row and the sleeper's commit fails when it wakes; never both.
"""

from __future__ import annotations

import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from places import Place, sqlite_place
from survivors import BROKER, Survivors, acquaint
from variants import VARIANTS, last_index, moments_of

import tallystick
from brokers import BrokerProcess, running_broker
from eventually import eventually_equal
from fork_server import Child, ForkServer

pytestmark = pytest.mark.fault

CHECK_AFTER = 0.5
PAUSE = 3 * CHECK_AFTER
AT_A_TIME = 20
TRIES = 20


class Case(NamedTuple):
    variant: str
    at: int
    gid: str
    """In check-back mode the transaction's own; in the others only the name of its change."""
    place: Place

    @property
    def moments(self) -> list[str]:
        return moments_of(self.variant, self.place.engine, named=True)

    @property
    def moment(self) -> str:
        return self.moments[self.at - 1]


class Ended(NamedTuple):
    """What the broker knew while the producer slept, and how the producer's block ended."""

    slept: str | None
    outcome: str


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**BROKER) as process:
        yield process


@pytest.fixture
def survivors(place: Place, broker: BrokerProcess, crew: ForkServer, tmp_path: Path) -> Survivors:
    return Survivors(broker.url, place, crew, tmp_path, CHECK_AFTER)


def test_a_sleeping_producer_and_the_check_back_never_both_win(survivors: Survivors, tmp_path: Path) -> None:
    cases = make_cases(survivors, tmp_path, "late", "late-async", "early")
    with survivors.living() as member:
        acquaint_with_all(member, cases)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            played = [
                one for some in pool.map(lambda case: sleeps_past_the_check(survivors, case), cases) for one in some
            ]
        assert_settled(survivors, *zip(*played, strict=True))


@pytest.mark.full
def test_a_sleeping_producer_and_the_re_driver_deliver_once(survivors: Survivors, tmp_path: Path) -> None:
    cases = make_cases(survivors, tmp_path, "outbox", "outbox-gid", "consumer-dedup")
    with survivors.living() as member:
        acquaint_with_all(member, cases)
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            ended = list(pool.map(lambda case: sleeps_past_the_re_driver(survivors, case), cases))
        assert {end.outcome for end in ended} == {"ok"}
        assert_settled(survivors, cases, ended)


def make_cases(survivors: Survivors, directory: Path, *variants: str) -> list[Case]:
    """One for each moment at which a process can be stopped and woken. SQLite has one lock: a file for each."""
    cases = []
    for variant in variants:
        for at, name in enumerate(moments_of(variant, survivors.place.engine, named=True), 1):
            if name == "local commit in flight":
                continue  # brought about by hand: there is no way on from it
            own = survivors.place.engine == "sqlite"
            place = sqlite_place(directory / f"{variant}-{at}.db") if own else survivors.place
            cases.append(Case(variant, at, f"{variant}-{at}-{uuid.uuid4().hex}", place))
    return cases


def acquaint_with_all(member: tallystick.Client, cases: list[Case]) -> None:
    for place, mode in {id(case.place): (case.place, VARIANTS[case.variant].mode) for case in cases}.values():
        acquaint(member, place, mode)


def sleeps_past_the_check(survivors: Survivors, case: Case) -> list[tuple[Case, Ended]]:
    """The case, after others of the same kind whose producer was asked before it had come to its moment, as happens
    on a busy machine: those are as good as cases of an earlier moment, so they only have to end well."""
    late: list[tuple[Case, Ended]] = []
    child = begin(survivors, case, gid=case.gid)
    while comes_late(survivors, case):
        late.append((case, Ended(None, wakes(child))))
        assert len(late) < TRIES, "no producer comes to its moment in time"
        case = case._replace(gid=f"{case.variant}-{case.at}-{uuid.uuid4().hex}")
        child = begin(survivors, case, gid=case.gid)
    return [*late, (case, sleeps(survivors, case, child))]


def comes_late(survivors: Survivors, case: Case) -> bool:
    if survivors.view.state(case.gid) is None:
        return False
    return time.time() - survivors.view.transaction(case.gid)["created_at"] / 1000 > CHECK_AFTER


def sleeps(survivors: Survivors, case: Case, child: Child) -> Ended:
    time.sleep(PAUSE)
    wanted = expected(case).slept
    if wanted in ("committed", "rolled_back"):
        eventually_equal(lambda: survivors.view.state(case.gid), wanted)
    slept = survivors.view.state(case.gid)
    ended = Ended(slept, wakes(child))
    assert ended == expected(case), (case, child.report)
    return ended


def sleeps_past_the_re_driver(survivors: Survivors, case: Case) -> Ended:
    child = begin(survivors, case)
    moments = case.moments
    if moments.index("after local commit") <= case.at - 1 < moments.index("after deletion"):
        eventually_equal(lambda: left_to_send(survivors, case), [], pause=0.3)
    return Ended(None, wakes(child))


def left_to_send(survivors: Survivors, case: Case) -> list[str]:
    """The outbox rows of a transaction, told by its messages in the log; itself if they are not there yet."""
    sent = {message["gid"] for message in survivors.view.log(survivors.topic) if message["key"] == case.gid}
    told = {gid for gid in sent if case.variant != "consumer-dedup" or gid.endswith(":commit")}
    rows = {row[0] for row in case.place.rows("select gid from tallystick_outbox")}
    return sorted(told & rows) if told else [case.gid]


def begin(survivors: Survivors, case: Case, **more: str) -> Child:
    child = survivors.produce(case.variant, case.at, case.gid, case.place, signal=signal.SIGSTOP, **more)
    assert child.wait_stopped(), child.report
    return child


def wakes(child: Child) -> str:
    child.resume()
    assert child.wait() == 0, child.report
    (outcome,) = child.reported("outcome")
    return str(outcome)


def expected(case: Case) -> Ended:
    """What the check-back can know while the producer sleeps, and so what the producer finds when it wakes."""
    moments, at = case.moments, case.at - 1
    # From here on the check-back's insert has to wait: SQLite locks the whole database, the others the row.
    locks_all = case.place.engine == "sqlite"
    marked = "after mark" if "after mark" in moments else "after statement"
    held = last_index(moments, "after local begin" if locks_all else marked)
    if at < moments.index("prepare request in flight"):
        return Ended(None, "ok")
    if at < held:
        return Ended("rolled_back", "failed")
    if at < moments.index("after local commit"):
        return Ended("prepared", "ok")
    return Ended("committed", "ok")


def assert_settled(survivors: Survivors, cases: Sequence[Case], ended: Sequence[Ended]) -> None:
    places = list({id(case.place): case.place for case in cases}.values())
    rows = Counter(row[0] for place in places for row in place.rows("select id from business"))
    ok = {case.gid for case, end in zip(cases, ended, strict=True) if end.outcome == "ok"}
    assert rows == Counter(dict.fromkeys(ok, 1))
    survivors.settle(ok, places)
    survivors.outcomes_agree(places)
