"""A producer group whose processes use two databases: nobody answers for one from the other."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from places import Place, sqlite_place
from survivors import BROKER, Survivors, effects_of
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
        survivors = Survivors(broker.url, other, crew, tmp_path, CHECK_AFTER)
        with survivors.living() as stranger:
            assert survivors.produce("late", at, "committed", place).wait() == -signal.SIGKILL
            ((gid,),) = place.rows("select gid from tallystick_barrier where op = 'msg'")
            eventually(lambda: stranger.stats.checks_unknown > 0)
            time.sleep(CHECK_AFTER)
            assert survivors.view.state(gid) == "prepared"
            assert other.rows("select gid from tallystick_barrier where op = 'msg'") == []

            with tallystick.Client(broker.url, group=survivors.group, database=place.connect):
                eventually_equal(lambda: effects_of(survivors.effects["inbox"]), {"committed": 1})
            assert survivors.view.transaction(gid)["resolved_by"] == "check"
