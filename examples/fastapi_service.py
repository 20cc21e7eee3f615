"""A FastAPI service: its clients live as long as it does, and its check-backs come to a URL of its own.

    pip install '.[server,fastapi]'           # in a checkout
    tallystick serve &
    python examples/fastapi_service.py        # serves on a free port, makes two requests to itself, ends

In production: `uvicorn --factory fastapi_service:create_app`, with TALLYSTICK_PUBLIC_URL set to where the broker can
reach the service, and that address in the broker's `allowed_urls`.
"""

import http.client
import json
import os
import sqlite3
import tempfile
import threading
import time
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI

from tallystick import CheckBack, Client, Message, outgoing
from tallystick.barrier import create_tables
from tallystick.fastapi import Tallystick
from tallystick.local import free_port


def open_shop() -> sqlite3.Connection:
    return sqlite3.connect("shop.db")


ts = Tallystick(group="example.fastapi-shop", check=CheckBack(after=0.5))  # the broker: TALLYSTICK_URL
Ts = Annotated[Client, Depends(ts.get_client)]


@ts.subscribe("example.shop-orders", type=dict[str, str], exactly_once=open_shop)
def pack(message: Message[dict[str, str]], conn: sqlite3.Connection) -> None:
    """A consumer, which runs in the lifespan of the application."""
    conn.execute("insert into parcels (item) values (?)", (message.data["item"],))


def create_app() -> FastAPI:
    conn = open_shop()
    create_tables(conn)
    conn.execute("create table if not exists orders (id integer primary key, item text)")
    conn.execute("create table if not exists parcels (id integer primary key, item text)")
    conn.commit()
    conn.close()
    app = FastAPI(lifespan=ts.lifespan)
    ts.mount(app, "/tallystick/check", open_shop)  # the whole check-back
    app.post("/orders/{item}")(order)
    app.post("/lost/{item}")(lost)
    return app


def order(item: str, client: Ts) -> dict[str, str]:
    conn = open_shop()
    try:
        with client.transaction(conn) as tx:
            conn.execute("insert into orders (item) values (?)", (item,))
            tx.send("example.shop-orders", {"item": item})
    finally:
        conn.close()
    return {"gid": tx.gid}


def lost(item: str, client: Ts) -> dict[str, str]:
    """A prepare whose process goes no further: only the check-back can end it."""
    gid = client.new_gid()
    client.prepare(gid, [outgoing("example.shop-orders", {"item": item})])
    return {"gid": gid}


def post(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", path)
    gid = json.load(connection.getresponse())["gid"]
    connection.close()
    return str(gid)


def main() -> None:
    port = free_port()
    os.environ["TALLYSTICK_PUBLIC_URL"] = f"http://127.0.0.1:{port}"
    server = uvicorn.Server(uvicorn.Config(create_app(), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    print(f"an order is {ts.client.outcome(post(port, '/orders/tea'))}")
    gid, deadline = post(port, "/lost/coffee"), time.monotonic() + 10
    while ts.client.outcome(gid) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    print(f"one that went no further than its prepare is {ts.client.outcome(gid)}")
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        main()
