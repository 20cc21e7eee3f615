"""Local transactions against check-backs of the same gids: whatever the timing, there is one outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from parties import DRIVER_ERRORS, Place, plain_kinds

from tallystick.barrier import (
    AlreadyDecided,
    Decision,
    SyncAdapter,
    adapt_sync,
    decide,
    decide_many,
    mark_committed,
    run_sync,
)
from tallystick.barrier.statement import Statement

PAIRS = 3


@dataclass
class History:
    """What the producers and the checkers saw, by gid."""

    committed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    told: dict[str, set[Decision]] = field(default_factory=dict)

    def tell(self, gid: str, answer: Decision) -> None:
        self.told.setdefault(gid, set()).add(answer)


def contradictions(history: History, rows: set[str], final: dict[str, Decision]) -> set[str]:
    """The gids whose answers do not fit what is in the database."""
    wrong = set()
    for gid, answer in final.items():
        truth: Decision = "committed" if gid in rows else "rolled_back"
        if answer != truth or history.told.get(gid, set()) - {truth, "running"}:
            wrong.add(gid)
    return wrong | (history.committed - rows) | (history.failed & rows)


Step = Callable[[SyncAdapter, str, History], None]


def produce(adapter: SyncAdapter, gid: str, history: History) -> None:
    try:
        adapter.begin()
        adapter.execute(Statement("insert into transfer (gid) values (:gid)", {"gid": gid}))
        run_sync(adapter, mark_committed(gid))
        adapter.commit()
        history.committed.add(gid)
    except (AlreadyDecided, *DRIVER_ERRORS):
        adapter.rollback()
        history.failed.add(gid)


def check(adapter: SyncAdapter, gid: str, history: History) -> None:
    history.tell(gid, run_sync(adapter, decide(gid, wait=0.3)))


def work(place: Place, plan: list[tuple[str, float]], each: Step, meet: threading.Barrier, history: History) -> None:
    with closing(place.plain()) as connection:
        adapter = adapt_sync(connection)
        for gid, delay in plan:
            meet.wait(30)
            time.sleep(delay)
            each(adapter, gid, history)


def race(place: Place, gids: list[str], history: History) -> None:
    """Pairs of a producer and a checker that start on the same gid at once; now and then one comes clearly first."""
    delays = [(0.02, 0.0), (0.0, 0.02), (0.0, 0.0), (0.0, 0.001), (0.001, 0.0)]
    threads = []
    for start in range(PAIRS):
        mine = gids[start::PAIRS]
        meet = threading.Barrier(2)
        for side, each in enumerate((produce, check)):
            plan = [(gid, delays[index % len(delays)][side]) for index, gid in enumerate(mine)]
            threads.append(threading.Thread(target=work, args=(place, plan, each, meet, history)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


@pytest.fixture
def transfers(place: Place) -> Place:
    place.query("drop table if exists transfer")
    place.query("create table transfer (gid varchar(128) primary key)")
    return place


def verdict(place: Place, gids: list[str], history: History) -> set[str]:
    rows = {row[0] for row in place.query("select gid from transfer")}
    with closing(place.plain()) as connection:
        final = run_sync(adapt_sync(connection), decide_many(gids))
    return contradictions(history, rows, final)


@plain_kinds
async def test_every_gid_has_one_outcome_whoever_comes_first(transfers: Place, gid: str) -> None:
    gids = [f"{gid}-{index}" for index in range(60 if transfers.engine == "sqlite" else 240)]
    history = History()
    race(transfers, gids, history)
    assert history.committed | history.failed == set(gids)
    assert verdict(transfers, gids, history) == set()
    # Both orders were really seen.
    assert history.committed
    assert any("rolled_back" in answers for answers in history.told.values())


@plain_kinds
async def test_check_back_that_only_reads_is_caught(transfers: Place, gid: str) -> None:
    """The seeded bug: an answer from a look at the table, which does not keep a late transaction out."""
    history = History()
    with closing(transfers.plain()) as connection:
        adapter = adapt_sync(connection)
        found = adapter.execute(Statement("select 1 from tallystick_barrier where gid = :gid", {"gid": gid}))
        history.tell(gid, "committed" if found.rows else "rolled_back")
        produce(adapter, gid, history)
    assert verdict(transfers, [gid], history) == {gid}


@pytest.mark.parametrize("kind", [pytest.param("pymysql", marks=pytest.mark.mariadb)])
async def test_waiting_check_back_does_not_hold_up_other_producers(place: Place, gid: str) -> None:
    running = await place.open()
    await running.begin()
    await running.run(mark_committed(f"{gid}-m"))
    waiting = threading.Event()

    def check() -> Decision:
        waiting.set()
        return run_sync(adapt_sync(checker_connection), decide(f"{gid}-m", wait=20))

    with closing(place.plain()) as checker_connection, closing(place.plain()) as other:
        answers: list[Decision] = []
        thread = threading.Thread(target=lambda: answers.append(check()))
        thread.start()
        waiting.wait(10)
        thread.join(0.3)
        other.cursor().execute("set innodb_lock_wait_timeout = 2")
        for neighbour in ("l", "n"):
            run_sync(adapt_sync(other), mark_committed(f"{gid}-{neighbour}"))
        assert thread.is_alive()
        await running.commit()
        thread.join(30)
    assert answers == ["committed"]
