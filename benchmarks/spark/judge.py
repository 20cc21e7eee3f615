"""Reconciliation of three sides that agree: producers' database, broker, consumers' database."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from urllib.parse import urlsplit

import msgspec
import psycopg

from benchmarks.processes import resident_mb
from benchmarks.spark.backlog import commit_locally
from benchmarks.spark.ground import Ground
from tallystick.barrier import create_tables
from tallystick.core.ids import new_gid
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare
from tallystick.core.wire import MSGPACK, BatchRequest
from tallystick.link import Link
from tallystick.spark.jobs.reconcile import Consumer, ReconcileSettings, run_reconcile

AT_ONCE = 2_000


def run(ground: Ground) -> None:
    many = ground.count(5_000_000)
    database = ground.server.new_database()
    parameters = ground.server.parameters(database)
    with ground.broker("judge", retention="30d", max_pending_age="3d") as broker:
        gids = _committed(broker.url, many)
        with psycopg.connect(**parameters) as connection:
            create_tables(connection)
            commit_locally(connection, gids)
            _applied(connection, gids)
        url = ground.database_url(database)
        settings = ReconcileSettings(
            brokers=(broker.url,),
            producers=(url,),
            consumers=(Consumer(group="readers", database=url, topics=("judged",)),),
            grace_ms=0,
        )
        summary = run_reconcile(ground.spark, settings)
        memory = resident_mb(broker.pid)
    if summary.verdict != "clean":
        raise ValueError(f"three sides that agree are called {summary.verdict}: {summary.found}")
    ground.add(f"reconcile, {many:,} gids on three sides", summary.seconds, "s", 300, at_most=True)
    ground.add("broker's memory after it", memory, "MB")


def _committed(url: str, count: int) -> list[str]:
    """Transactions prepared and committed, many to a request."""
    with Link(url) as link:
        store = link.get("info")["store"]
    gids = [new_gid(store) for _ in range(count)]
    pieces = [gids[at : at + AT_ONCE] for at in range(0, count, AT_ONCE)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda piece: _commit(url, piece), pieces))
    return gids


def _commit(url: str, gids: list[str]) -> None:
    ops = [Prepare(gid, "bench", [OutgoingMessage("judged", b"x" * 100, key=gid[-3:])]) for gid in gids]
    body = msgspec.msgpack.encode(BatchRequest([*ops, *[Commit(gid) for gid in gids]]))
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("POST", "/v1/batch", body, {"Content-Type": MSGPACK})
    if connection.getresponse().status != 200:
        raise ValueError("the broker refused a batch")
    connection.close()


def _applied(connection: psycopg.Connection, gids: list[str]) -> None:
    """The inbox of a consumer that has applied every message."""
    now = datetime.now(UTC)
    with connection.cursor().copy("copy tallystick_inbox from stdin") as copy:
        for gid in gids:
            copy.write_row(("readers", f"{gid}/0", now))
