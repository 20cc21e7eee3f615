"""asyncio from end to end: an async producer and an async handler, over SQLAlchemy and aiosqlite.

pip install '.[sqlalchemy]' aiosqlite  # in a checkout
tallystick serve &
python examples/async_consumer.py
"""

import asyncio
import os
import sys
import tempfile

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

import tallystick
from tallystick.barrier import create_tables_async

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TALLYSTICK_URL", "http://127.0.0.1:7440")
EVENTS = 10


async def set_up(engine: AsyncEngine, table: str) -> None:
    async with engine.connect() as conn:
        await create_tables_async(conn)
        await conn.execute(text(f"create table {table} (id integer primary key, event integer)"))
        await conn.commit()


async def produce(ts: tallystick.AsyncClient, engine: AsyncEngine) -> None:
    async with engine.connect() as conn:
        for event in range(EVENTS):
            async with ts.transaction(conn) as tx:
                await conn.execute(text("insert into done (event) values (:event)"), {"event": event})
                tx.send("example.events", {"event": event}, key=str(event % 3))


async def count(engine: AsyncEngine) -> int:
    async with engine.connect() as conn:
        found = await conn.execute(text("select count(distinct event) from seen"))
        return int(found.scalar_one())


async def main() -> None:
    here, there = (create_async_engine(f"sqlite+aiosqlite:///{name}.db") for name in ("here", "there"))
    await set_up(here, "done")
    await set_up(there, "seen")

    async def open_there() -> AsyncConnection:
        return await there.connect()

    async with tallystick.AsyncClient(URL, group="example.source") as ts:

        @ts.subscribe("example.events", group="example.sink", exactly_once=open_there, concurrency=1)
        async def note(message: tallystick.Message, conn: AsyncConnection) -> None:
            await conn.execute(text("insert into seen (event) values (:event)"), message.json())

        await ts.start()  # `await ts.run()` stays until a signal
        await produce(ts, here)
        async with asyncio.timeout(10):
            while await count(there) < EVENTS:  # noqa: ASYNC110 - only the database knows
                await asyncio.sleep(0.05)
        await ts.stop()
    print(f"{await count(there)} of {EVENTS} events arrived")
    await here.dispose()
    await there.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        asyncio.run(main())
