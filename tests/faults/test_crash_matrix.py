"""A producer killed at every step of a transaction: afterwards exactly the committed changes have been delivered."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from places import Place, server_place
from survivors import BROKER, Survivors
from variants import VARIANTS, is_committed, moments_of

from brokers import BrokerProcess, running_broker
from fork_server import ForkServer
from servers import Server

pytestmark = pytest.mark.fault

CHECK_AFTER = 1.0
AT_A_TIME = 8
TRIES = 20
PATIENCE = 10.0
# Moments of each variant on a database server; SQLite has one less.
COUNTS = {
    "late": 24,
    "late-async": 24,
    "later": 20,
    "later-async": 20,
    "returned": 24,
    "returned-async": 24,
    "early": 32,
    "refused": 31,
    "outbox": 22,
    "outbox-returned": 22,
    "outbox-gid": 24,
    "consumer-dedup": 26,
}


class Case(NamedTuple):
    variant: str
    at: int
    name: str


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**BROKER) as process:
        yield process


def test_a_kill_at_any_step_leaves_both_or_neither(
    place: Place, broker: BrokerProcess, crew: ForkServer, tmp_path: Path
) -> None:
    outcomes = kill_at_every_step(Survivors(broker.url, place, crew, tmp_path, CHECK_AFTER), list(VARIANTS))
    assert outcomes == {(outcome, by) for outcome in ("committed", "rolled_back") for by in ("producer", "check")}


@pytest.mark.full
@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("driver", "variants"), [("psycopg2", ["late", "outbox"]), ("asyncpg", ["late-async", "later-async"])]
)
def test_a_kill_at_any_step_leaves_both_or_neither_whatever_the_driver(
    postgres: Server, broker: BrokerProcess, crew: ForkServer, tmp_path: Path, driver: str, variants: list[str]
) -> None:
    place = server_place(postgres)._replace(driver=driver)
    outcomes = kill_at_every_step(Survivors(broker.url, place, crew, tmp_path, CHECK_AFTER), variants)
    assert outcomes == {("committed", "producer"), ("committed", "check"), ("rolled_back", "check")}


def kill_at_every_step(survivors: Survivors, variants: list[str]) -> set[Any]:
    """Which outcomes there were, and who brought them about."""
    place = survivors.place
    with survivors.living():
        cases = find_cases(survivors, variants)
        unhurt: set[str] = set()
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            names = list(pool.map(lambda case: killed(survivors, case, unhurt), cases))
        committed = survivors.committed()
        sure = [is_committed(moments_of(case.variant, place.engine), case.at) for case in cases]
        must = {name for name, is_in in zip(names, sure, strict=True) if is_in}
        may = {name for name, is_in in zip(names, sure, strict=True) if is_in is None}
        finished = {f"{name}-dry" for name in variants if not VARIANTS[name].refused}
        assert committed - may == must | finished | unhurt
        survivors.settle(committed)
    outcomes = survivors.outcomes_agree()
    assert_kills_hit_their_moment(survivors, dict(zip(names, cases, strict=True)))
    return set(outcomes)


def find_cases(survivors: Survivors, variants: list[str]) -> list[Case]:
    """Run each variant to its end and take a case for every moment it passes; all of them must be known here."""
    cases = []
    for variant in variants:
        child = survivors.produce(variant, 0, f"{variant}-dry", check_after=60.0, patience=30.0)
        assert child.wait() == 0, survivors.crew.log_text()
        (moments,) = child.reported("moments")
        known = moments_of(variant, survivors.place.engine)
        assert in_order(variant, moments) == in_order(variant, known)
        assert len(VARIANTS[variant].moments) == COUNTS[variant]
        cases += [Case(variant, at, name) for at, name in enumerate(moments, 1)]
    return cases


def in_order(variant: str, moments: list[str]) -> list[str]:
    """In a block that is refused, or does not wait, some come from two threads: only which there are is known of it."""
    return moments if VARIANTS[variant].ordered else sorted(moments)


def killed(survivors: Survivors, case: Case, unhurt: set[str]) -> str:
    """Have a producer die at a moment. A block that a check-back overtook never gets there, and is run again; so is one
    that found the database locked when its outbox row was to be deleted, and left that to others."""
    moment = case.name if VARIANTS[case.variant].ordered else None
    for attempt in range(TRIES):
        name = f"{case.variant}-{case.at:02}-{case.name}-{attempt}"
        child = survivors.produce(case.variant, case.at, name, moment=moment, patience=PATIENCE)
        code = child.wait()
        if code == -signal.SIGKILL:
            return name
        assert code == 0, survivors.crew.log_text()
        if child.reported("outcome") == ["ok"]:
            unhurt.add(name)
        else:
            assert child.reported("outcome") == ["failed"], child.report
    raise AssertionError(f"{case} was never reached: {child.report}")


def assert_kills_hit_their_moment(survivors: Survivors, cases: dict[str, Case]) -> None:
    """Who resolved a transaction tells where its producer died: the check-back alone mends what was never told."""
    resolved_by = {
        message["value"]: survivors.view.transaction(message["gid"])["resolved_by"]
        for message in survivors.view.log(survivors.topic)
        if message["value"] in cases and VARIANTS[cases[message["value"]].variant].mode == "check-back"
    }
    for name, by in resolved_by.items():
        moments = moments_of(cases[name].variant, survivors.place.engine)
        at = cases[name].at - 1
        if not VARIANTS[cases[name].variant].ordered:
            continue
        if at < moments.index("commit request in flight"):
            assert (name, by) == (name, "check")
        elif at >= moments.index("commit request answered"):
            assert (name, by) == (name, "producer")
    assert {"check", "producer"} <= set(resolved_by.values())
