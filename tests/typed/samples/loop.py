"""A program with `AsyncClient`, as a user would write it, and what a type checker must make of each expression."""

import sqlite3
from typing import assert_type

from tallystick import AsyncClient, AsyncTransaction, BrokerUnavailable, Fetched, Message, Sent, Stats
from tallystick.client.handlers import asgi


async def main(conn: sqlite3.Connection) -> None:
    async with AsyncClient("http://127.0.0.1:7440", group="shop") as client:
        assert_type(client, AsyncClient)
        assert_type(client.stats, Stats)
        assert_type(client.new_gid(), str)
        async with client.transaction(conn, wait=True) as tx:
            assert_type(tx, AsyncTransaction)
            tx.send("orders", {"item": "tea"}, tag="hot")
            await tx.commit(wait=2.0)
        assert_type(await client.send("orders", b"tea", headers={"trace": "1"}), Sent)
        assert_type(await client.fetch("orders", 0, 0), Fetched)
        received = await client.receive("orders", "packers")
        assert_type(received, list[Message])
        try:
            await client.ack("packers", received)
        except BrokerUnavailable as away:
            assert_type(away, BrokerUnavailable)
        await client.start()
        await client.stop(grace=1)

        client.transaction(conn, mode="inbox")  # wrong
        await client.send("orders", {}, level="two")  # wrong
        await client.receive("orders")  # wrong
        with client.transaction(conn):  # wrong
            pass


app = asgi(lambda: sqlite3.connect("shop.db"))
