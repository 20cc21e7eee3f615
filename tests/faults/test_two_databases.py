"""A producer group whose processes use two databases: nobody answers for one from the other."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from ground import BROKER, Ground, effects_of
from places import Place, sqlite_place
from variants import moments_of

import tallystick
from brokers import running_broker
from eventually import eventually, eventually_equal
from fork_server import ForkServer

pytestmark = pytest.mark.fault

CHECK_AFTER = 0.3


def test_a_member_that_does_not_know_the_database_never_decides(place: Place, crew: ForkServer, tmp_path: Path) -> None:
    """The barrier of another database has no row of the transaction; to take that for a rollback would lose it."""
    other = sqlite_place(tmp_path / "other.db")
    at = moments_of("late", place.engine).index("after local commit") + 1
    with running_broker(**BROKER) as broker:
        ground = Ground(broker.url, other, crew, tmp_path, CHECK_AFTER)
        with ground.living() as stranger:
            assert ground.produce("late", at, "committed", place).wait() == -signal.SIGKILL
            ((gid,),) = place.rows("select gid from tallystick_barrier where op = 'msg'")
            eventually(lambda: stranger.stats.checks_unknown > 0)
            time.sleep(CHECK_AFTER)
            assert ground.view.state(gid) == "prepared"
            assert other.rows("select gid from tallystick_barrier where op = 'msg'") == []

            with tallystick.Client(broker.url, group=ground.group, database=place.connect):
                eventually_equal(lambda: effects_of(ground.effects["inbox"]), {"committed": 1})
            assert ground.view.transaction(gid)["resolved_by"] == "check"
