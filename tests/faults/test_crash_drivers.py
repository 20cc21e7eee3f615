"""Producers over further drivers, killed at each step: both or neither, as over those of the matrix."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from places import Place, server_place, sqlite_place
from survivors import BROKER, Survivors
from test_crash_matrix import AT_A_TIME, CHECK_AFTER, Case, killed
from variants import is_committed, moments_of

from brokers import BrokerProcess, running_broker
from fork_server import ForkServer

pytestmark = [pytest.mark.fault, pytest.mark.full]

CASES = [
    *(("MySQLdb", "late"), ("MySQLdb", "outbox"), ("mysql.connector", "late"), ("mysql.connector", "outbox")),
    *(("aiomysql", "late-async"), ("asyncmy", "late-async"), ("aiosqlite", "late-async")),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(**BROKER) as process:
        yield process


@pytest.fixture
def place(driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if driver == "aiosqlite":
        return sqlite_place(tmp_path / "service.db")
    return server_place(request.getfixturevalue("mariadb"))


@pytest.mark.parametrize(
    ("driver", "variant"),
    [pytest.param(*case, marks=[] if case[0] == "aiosqlite" else pytest.mark.mariadb) for case in CASES],
)
def test_a_kill_at_any_step_leaves_both_or_neither(
    driver: str, variant: str, place: Place, broker: BrokerProcess, crew: ForkServer, tmp_path: Path
) -> None:
    survivors = Over(broker.url, place, crew, tmp_path, CHECK_AFTER)
    survivors.driver = driver
    with survivors.living():
        dry = survivors.produce(variant, 0, "dry", check_after=60.0, patience=30.0)
        assert dry.wait() == 0, crew.log_text()
        (moments,) = dry.reported("moments")
        # A client that was told the way in has one thing less to learn.
        told = ["before broker", "after broker"] if (driver, variant) == ("MySQLdb", "late") else []
        assert sorted([*moments, *told]) == sorted(moments_of(variant, place.engine))
        cases = [Case(variant, at, step) for at, step in enumerate(moments, 1)]
        unhurt: set[str] = set()
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            names = list(pool.map(lambda case: killed(survivors, case, unhurt), cases))
        committed = survivors.committed()
        sure = {name: is_committed(moments, case.at) for name, case in zip(names, cases, strict=True)}
        may = {name for name, is_in in sure.items() if is_in is None}
        assert committed - may == {name for name, is_in in sure.items() if is_in} | {"dry"} | unhurt
        survivors.settle(committed)
    survivors.outcomes_agree()


class Over(Survivors):
    """The producers have another driver than those who live on."""

    driver: str

    def produce(self, variant: str, at: int, name: str, place: Place | None = None, **more: object):  # type: ignore[no-untyped-def]
        return super().produce(variant, at, name, (place or self.place)._replace(driver=self.driver), **more)
