"""A FastAPI service whose check-backs come to a URL of its own, mounted in one line.

    pip install . fastapi uvicorn        # in a checkout
    tallystick serve &
    python examples/fastapi_service.py        # serves on a free port, makes two requests to itself, ends

In production: `uvicorn fastapi_service:app`, with PUBLIC_URL set to where the broker can reach the service, and that
address in the broker's `allowed_urls`.
"""

import http.client
import json
import os
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

import tallystick
from tallystick.barrier import create_tables
from tallystick.client import handlers

URL = os.environ.get("TALLYSTICK_URL", "http://127.0.0.1:7440")
PUBLIC_URL = os.environ.get("PUBLIC_URL", "http://127.0.0.1:8080")


def open_shop() -> sqlite3.Connection:
    return sqlite3.connect("shop.db")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    conn = open_shop()
    create_tables(conn)
    conn.execute("create table if not exists orders (id integer primary key, item text)")
    conn.commit()
    conn.close()
    yield
    ts.close()


ts = tallystick.Client(URL, group="example.fastapi-shop")
app = FastAPI(lifespan=lifespan)
app.mount("/tallystick/check", handlers.asgi(open_shop))  # the whole check-back


def check() -> tallystick.CheckBack:
    # The slash at the end matters: a mounted application answers below its path, and redirects are not followed.
    return tallystick.CheckBack(url=f"{PUBLIC_URL}/tallystick/check/", after=0.5)


@app.post("/orders/{item}")
def order(item: str) -> dict[str, str]:
    conn = open_shop()
    try:
        with ts.transaction(conn, check=check()) as tx:
            conn.execute("insert into orders (item) values (?)", (item,))
            tx.send("example.shop-orders", {"item": item})
    finally:
        conn.close()
    return {"gid": tx.gid}


@app.post("/lost/{item}")
def lost(item: str) -> dict[str, str]:
    """A prepare whose process goes no further: only the check-back can end it."""
    gid = ts.new_gid()
    ts.prepare(gid, [tallystick.outgoing("example.shop-orders", {"item": item})], check=check())
    return {"gid": gid}


def post(path: str) -> str:
    connection = http.client.HTTPConnection(PUBLIC_URL.removeprefix("http://"), timeout=10)
    connection.request("POST", path)
    gid = json.load(connection.getresponse())["gid"]
    connection.close()
    return str(gid)


def main() -> None:
    global PUBLIC_URL
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    PUBLIC_URL = f"http://127.0.0.1:{port}"
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    print(f"an order is {ts.outcome(post('/orders/tea'))}")
    gid, deadline = post("/lost/coffee"), time.monotonic() + 10
    while ts.outcome(gid) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    print(f"one that went no further than its prepare is {ts.outcome(gid)}")
    server.should_exit = True
    thread.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        main()
