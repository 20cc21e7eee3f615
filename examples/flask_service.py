"""A Flask service whose check-backs come to a URL of its own, and whose consumers are a command of its own.

    pip install '.[server,flask]'             # in a checkout
    tallystick serve &
    python examples/flask_service.py          # serves on a free port, makes two requests to itself, ends

In production: `gunicorn 'flask_service:create_app()'`, and `flask --app flask_service tallystick consume` beside it,
with TALLYSTICK_PUBLIC_URL set to where the broker can reach the service. The application may be made before gunicorn
forks its workers: each worker gets connections of its own at its first use.
"""

import http.client
import json
import os
import sqlite3
import tempfile
import threading
import time
from wsgiref.simple_server import WSGIRequestHandler, make_server

from flask import Blueprint, Flask

from tallystick import CheckBack, Message, outgoing
from tallystick.barrier import create_tables
from tallystick.flask import Tallystick


def open_shop() -> sqlite3.Connection:
    return sqlite3.connect("shop.db")


ts = Tallystick(database=open_shop, check=CheckBack(after=0.5))
shop = Blueprint("shop", __name__)


@shop.post("/orders/<item>")
def order(item: str) -> dict[str, str]:
    conn = open_shop()
    try:
        with ts.transaction(conn) as tx:
            conn.execute("insert into orders (item) values (?)", (item,))
            tx.send("example.shop-orders", {"item": item})
    finally:
        conn.close()
    return {"gid": tx.gid}


@shop.post("/lost/<item>")
def lost(item: str) -> dict[str, str]:
    """A prepare whose process goes no further: only the check-back can end it."""
    gid = ts.client.new_gid()
    ts.client.prepare(gid, [outgoing("example.shop-orders", {"item": item})])
    return {"gid": gid}


@ts.subscribe("example.shop-orders", exactly_once=open_shop)
def pack(message: Message, conn: sqlite3.Connection) -> None:
    """A consumer, for `flask tallystick consume`."""
    conn.execute("insert into parcels (item) values (?)", (message.json()["item"],))


def create_app() -> Flask:
    """What a server calls in each of its processes: the tables are there before the first request."""
    conn = open_shop()
    create_tables(conn)
    conn.execute("create table if not exists orders (id integer primary key, item text)")
    conn.execute("create table if not exists parcels (id integer primary key, item text)")
    conn.commit()
    conn.close()
    app = Flask(__name__)
    app.config["TALLYSTICK_GROUP"] = "example.flask-shop"  # TALLYSTICK_URL comes from the environment
    app.config["TALLYSTICK_CHECK_PATH"] = "/tallystick/check"
    app.register_blueprint(shop)
    ts.init_app(app)
    return app


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """The example prints what matters itself."""


def post(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", path)
    gid = json.load(connection.getresponse())["gid"]
    connection.close()
    return str(gid)


def main() -> None:
    app = create_app()
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server, app.app_context():
        app.config["TALLYSTICK_PUBLIC_URL"] = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        print(f"an order is {ts.client.outcome(post(server.server_port, '/orders/tea'))}")
        gid, deadline = post(server.server_port, "/lost/coffee"), time.monotonic() + 10
        while ts.client.outcome(gid) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        print(f"one that went no further than its prepare is {ts.client.outcome(gid)}")
        server.shutdown()
        thread.join()
        ts.client.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        main()
