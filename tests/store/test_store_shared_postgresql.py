"""What only PostgreSQL does: a connection of its that says nothing and does not end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

import shared_stores
from servers import Server
from tallystick.store.kv.engine import Changes
from tallystick.store.shared import postgresql_session
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.opening import server_at

pytestmark = pytest.mark.postgresql


@contextlib.contextmanager
def _paused(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_server_process_that_hangs_is_left_and_what_it_does_later_counts_for_nothing(
    request: pytest.FixtureRequest, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_stores.start("postgresql", request)
    server = server_at(shared_stores.url_at("postgresql"), shared_stores.new_number())
    server.create()
    engine = SharedEngine(server, server.claim("test").epoch)
    changes = Changes()
    changes.keys["index"] = {b"a": b"1"}
    ((hanging,),) = postgres.execute(
        "select pid from pg_stat_activity where query like '%tallystick_store_fence%' and pid <> pg_backend_pid()"
        " order by state_change desc limit 1"
    )
    monkeypatch.setattr(postgresql_session, "ANSWER_SECONDS", 1.0)
    with _paused(hanging):
        engine.write(changes)
        changes.keys["index"] = {b"a": b"2"}
        engine.write(changes)
    assert engine.get("index", b"a") == b"2"
    fence = server.fence()
    assert fence is not None
    assert fence.unit == 3  # one to begin with, and these two
    server.close()
