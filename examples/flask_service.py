"""A Flask service whose check-backs come to a URL of its own, mounted in one line.

    pip install . flask                       # in a checkout
    tallystick serve &
    python examples/flask_service.py          # serves on a free port, makes two requests to itself, ends

In production: `gunicorn 'flask_service:create_app()'`. The client may be made before gunicorn forks its workers: each
worker gets connections of its own at its first use.
"""

import http.client
import json
import os
import sqlite3
import tempfile
import threading
import time
from wsgiref.simple_server import WSGIRequestHandler, make_server

from flask import Flask

import tallystick
from tallystick.barrier import create_tables
from tallystick.client import handlers

URL = os.environ.get("TALLYSTICK_URL", "http://127.0.0.1:7440")
PUBLIC_URL = os.environ.get("PUBLIC_URL", "http://127.0.0.1:8080")


def open_shop() -> sqlite3.Connection:
    return sqlite3.connect("shop.db")


ts = tallystick.Client(URL, group="example.flask-shop")
app = Flask(__name__)
app.wsgi_app = handlers.wsgi(open_shop, app.wsgi_app, "/tallystick/check")  # type: ignore[method-assign]


def check() -> tallystick.CheckBack:
    return tallystick.CheckBack(url=f"{PUBLIC_URL}/tallystick/check", after=0.5)


@app.post("/orders/<item>")
def order(item: str) -> dict[str, str]:
    conn = open_shop()
    try:
        with ts.transaction(conn, check=check()) as tx:
            conn.execute("insert into orders (item) values (?)", (item,))
            tx.send("example.shop-orders", {"item": item})
    finally:
        conn.close()
    return {"gid": tx.gid}


@app.post("/lost/<item>")
def lost(item: str) -> dict[str, str]:
    """A prepare whose process goes no further: only the check-back can end it."""
    gid = ts.new_gid()
    ts.prepare(gid, [tallystick.outgoing("example.shop-orders", {"item": item})], check=check())
    return {"gid": gid}


def create_app() -> Flask:
    """What a server calls in each of its processes: the tables are there before the first request."""
    conn = open_shop()
    create_tables(conn)
    conn.execute("create table if not exists orders (id integer primary key, item text)")
    conn.commit()
    conn.close()
    return app


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """The example prints what matters itself."""


def post(path: str) -> str:
    connection = http.client.HTTPConnection(PUBLIC_URL.removeprefix("http://"), timeout=10)
    connection.request("POST", path)
    gid = json.load(connection.getresponse())["gid"]
    connection.close()
    return str(gid)


def main() -> None:
    global PUBLIC_URL
    with make_server("127.0.0.1", 0, create_app(), handler_class=Quiet) as server:
        PUBLIC_URL = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        print(f"an order is {ts.outcome(post('/orders/tea'))}")
        gid, deadline = post("/lost/coffee"), time.monotonic() + 10
        while ts.outcome(gid) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        print(f"one that went no further than its prepare is {ts.outcome(gid)}")
        server.shutdown()
        thread.join()
    ts.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        main()
