"""The extensions, as an application uses them, and what a type checker must make of each expression."""

import sqlite3
from typing import Annotated, assert_type

from fastapi import Depends, FastAPI
from flask import Flask

from tallystick import AsyncClient, CheckBack, Client, Message, Transaction
from tallystick.fastapi import Tallystick as OnFastAPI
from tallystick.flask import Tallystick as OnFlask


def open_shop() -> sqlite3.Connection:
    return sqlite3.connect("shop.db")


ts = OnFastAPI("http://127.0.0.1:7440", group="shop", database=open_shop, timeout=2.0, check=CheckBack(after=1))
app = FastAPI(lifespan=ts.lifespan)
ts.mount(app, "/check", open_shop)
assert_type(ts.client, Client)
assert_type(ts.async_client, AsyncClient)


@app.post("/orders")
async def order(client: Annotated[AsyncClient, Depends(ts.get_async_client)]) -> None:
    await client.send("orders", {})


@ts.subscribe("orders", type=list[int])
async def handle(message: Message[list[int]]) -> None:
    assert_type(message.data, list[int])


flask_ts = OnFlask(Flask(__name__), database=open_shop, wait=True)
assert_type(flask_ts.client, Client)

with flask_ts.transaction(open_shop(), mode="outbox") as tx:
    assert_type(tx, Transaction)

OnFastAPI(timeout="soon")  # wrong
OnFlask(retries=3)  # wrong
flask_ts.transaction(open_shop(), mode="inbox")  # wrong


@flask_ts.subscribe("orders", type=int)  # wrong
def of_another_type(message: Message[str]) -> None: ...
