"""A store on PostgreSQL or MariaDB while the server dies, connections are cut, and others believe that they own it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
from shared_stream import NOW, CutOnce, Stream, counted_cuts, stored

from cutting_proxy import Cut, CuttingProxy, cutting_proxy
from eventually import eventually
from servers import Server, mariadb_server, postgres_server
from shared_stores import FIXTURES, SHARED, SHARED_FULL, new_number, opener, url_of
from tallystick.core.errors import StorageFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.opening import open_shared

pytestmark = pytest.mark.fault

RUNS: dict[str, Callable[[], AbstractContextManager[Server]]] = {
    "postgresql": postgres_server,
    "mysql": mariadb_server,
}
# Who waits for the fence's row.
WAITING = {
    "postgresql": "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%with fenced%'",
    "mysql": "select 1 from information_schema.innodb_trx where trx_state = 'LOCK WAIT'",
}


@pytest.fixture(scope="module", params=[one for one in SHARED if one.values[0] in RUNS])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(FIXTURES[request.param])
    return found


@pytest.fixture(scope="module")
def database(server: Server) -> str:
    return server.new_database()


@pytest.fixture
def proxy(server: Server) -> Iterator[CuttingProxy]:
    with cutting_proxy(server.port) as made:
        yield made


# --- the connection --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [100, pytest.param(60_000, marks=pytest.mark.full)])
@pytest.mark.parametrize("how", ["before", "after"])
def test_a_connection_cut_at_any_statement_or_in_its_commit(
    server: Server, database: str, proxy: CuttingProxy, how: Cut, weight: int
) -> None:
    """Each statement is a transaction: its answer is that of its commit. Cut before it, the server has not seen it; cut
    after it, it is committed and nobody was told."""
    url, number = url_of(server, database, proxy.port), new_number()
    stream = Stream(opener(url, number)(StoreSettings()))
    for piece in range(40):
        cut = CutOnce(piece, how)
        proxy._choose = cut
        stream.unit(f"cut-{piece}", weight=weight)
        if cut.left > 0:
            break  # the unit was through before it came to that
    else:
        assert weight > 100, "a unit has few statements"
    proxy.calm()
    assert proxy.cut >= 3
    stream.check(stream.store)
    stream.store.close()
    again = opener(url_of(server, database), number)(StoreSettings())
    stream.check(again)
    assert set(stored(again)) == stream.asked
    again.close()


def test_a_server_that_cannot_be_reached_is_told_of_and_nothing_is_acknowledged(
    server: Server, database: str, proxy: CuttingProxy
) -> None:
    store = opener(url_of(server, database, proxy.port))(StoreSettings())
    proxy.arm("before")
    with pytest.raises(StorageFailed, match="shared store cannot be used"):
        store.write([Send([OutgoingMessage("orders", b"x")], "g")], NOW)
    assert store.recover() is None
    proxy.calm()
    assert store.recover() is not None
    assert store.transaction("g") is None
    store.close()


# --- the server ------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", [one for one in SHARED_FULL if one.values[0] in RUNS])
def test_the_server_is_killed_and_started_again_under_a_stream_of_units(engine: str) -> None:
    with RUNS[engine]() as server, ThreadPoolExecutor(1) as killer:
        number = new_number()
        store = open_shared(url_of(server, server.database), number)
        stream, cuts = Stream(store, between=lambda: time.sleep(0.01)), counted_cuts(store)
        written = 0
        for kill in range(4):
            moment = random.Random(kill).uniform(0.0, 0.2)
            done = killer.submit(_kill_and_start, server, moment)
            while not done.done() or written % 10:
                stream.unit(f"u{written}")
                written += 1
            done.result()
        assert cuts, "no unit met the server's end"
        stream.check(store)
        store.close()
        again = open_shared(url_of(server, server.database), number)
        stream.check(again)
        assert set(stored(again)) == stream.told == stream.asked
        again.close()


def _kill_and_start(server: Server, after: float) -> None:
    time.sleep(after)
    server.kill()
    server.start()


# --- other owners ----------------------------------------------------------------------------------------------------


def test_a_unit_that_waits_on_the_server_while_the_store_is_claimed_stores_nothing(
    server: Server, database: str
) -> None:
    """What it saw is from before the claim, and it waits for the fence's row."""
    url, number = url_of(server, database), new_number()
    store = opener(url, number)(StoreSettings())
    with server.connect(database) as claiming, ThreadPoolExecutor(1) as writer:
        claiming.cursor().execute("update tallystick_store_fence set epoch = epoch + 1 where store = %s", (number,))
        unit = writer.submit(store.write, [Send([OutgoingMessage("orders", b"x")], "g")], NOW)
        eventually(lambda: server.execute(WAITING[server.engine], database), "the unit waits for the fence")
        claiming.commit()
        with pytest.raises(StorageFailed, match="another owner"):
            unit.result()
    store.close()
    again = opener(url, number)(StoreSettings())
    assert again.transaction("g") is None
    again.close()
