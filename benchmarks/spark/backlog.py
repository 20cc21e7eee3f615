"""A backlog of half messages: resolved by the Spark job, and by the online checker in the same run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks import loads
from benchmarks.spark.ground import Ground
from tallystick import AsyncClient
from tallystick.barrier import create_tables
from tallystick.spark.jobs.checkback import CheckbackSettings, ProducerDatabase, run_checkback


def run(ground: Ground) -> None:
    database = ground.server.new_database()
    parameters = ground.server.parameters(database)
    with psycopg.connect(**parameters) as connection:
        create_tables(connection)
    many, few = ground.count(1_000_000), ground.count(50_000, 5_000)
    with ground.broker("backlog", check_after="1h", max_pending_age="3d") as broker:
        online = _online_rate(broker.url, parameters, few)
        ground.add(f"online check-back, {few:,} pending", online, "tx/s")
        gids = asyncio.run(_prepare(broker.url, "backlog", many))
        with psycopg.connect(**parameters) as connection:
            commit_locally(connection, gids[::2])
        url = ground.database_url(database)
        settings = CheckbackSettings(
            url=broker.url,
            databases=(ProducerDatabase.parse(url),),
            groups=("backlog",),
            sourceless=True,
            older_than_ms=0,
        )
        summary = run_checkback(ground.spark, settings)
    if (summary.committed, summary.rolled_back) != (len(gids[::2]), many - len(gids[::2])):
        raise ValueError(f"wrong outcomes: {summary}")
    rate = many / summary.seconds
    ground.add(f"checkback on Spark, {many:,} pending", summary.seconds, "s", 180, at_most=True)
    ground.add("checkback on Spark", rate, "tx/s", ratio=rate / online, ratio_of="the online checker")


async def _prepare(url: str, group: str, count: int) -> list[str]:
    async with AsyncClient(url, group=group) as client:
        return await loads.prepare_only(client, count, "halves", check_after=0)


def _online_rate(url: str, parameters: dict[str, object], count: int) -> float:
    """Transactions a second that one member of the producer group answers from the barrier."""
    gids = asyncio.run(_prepare(url, "online", count))
    with psycopg.connect(**parameters) as connection:
        commit_locally(connection, gids[::2])
    return asyncio.run(_answered(url, make_conninfo(**parameters), count))


async def _answered(url: str, dsn: str, count: int) -> float:
    began = time.perf_counter()
    async with AsyncClient(url, group="online", database=lambda: psycopg.connect(dsn)) as client:
        while (await client.info()).oldest_pending_at is not None:  # noqa: ASYNC110 - others do the work
            await asyncio.sleep(0.05)
    return count / (time.perf_counter() - began)


def commit_locally(connection: psycopg.Connection, gids: Iterable[str]) -> None:
    """The rows that committed local transactions leave."""
    columns = "(trans_type, gid, branch_id, op, barrier_id, reason)"
    with connection.cursor().copy(f"copy tallystick_barrier {columns} from stdin") as copy:
        for gid in gids:
            copy.write_row(("msg", gid, "00", "msg", "01", "msg"))
