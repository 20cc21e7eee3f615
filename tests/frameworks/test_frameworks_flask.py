"""`tallystick.flask`: a client for each application, its check-back, and its commands."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from client_support import Bank, messages_in
from flask import Flask, current_app
from sqlalchemy import create_engine, text
from sqlalchemy.orm import scoped_session, sessionmaker

import tallystick
from brokers import BrokerProcess
from eventually import eventually
from tallystick import CheckBack, Message
from tallystick.errors import TallystickError
from tallystick.flask import Tallystick
from tallystick.local import LocalService, module


def application(ts: Tallystick, broker: BrokerProcess, group: str, **config: Any) -> Flask:
    app = Flask(__name__)
    app.config.update({"TALLYSTICK_URL": broker.url, "TALLYSTICK_GROUP": group, **config})
    ts.init_app(app)
    return app


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def wsgi_server() -> Iterator[Any]:
    with make_server("127.0.0.1", 0, Flask(__name__), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_a_block_on_the_session_of_the_application(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    ts = Tallystick()
    app = application(ts, broker, group)
    engine = create_engine(f"sqlite:///{bank.path}")
    session = scoped_session(sessionmaker(engine))  # what Flask-SQLAlchemy has as db.session

    @app.post("/orders/<item>")
    def order(item: str) -> str:
        with ts.transaction(session, wait=True) as tx:
            session.execute(text("insert into ledger (note) values (:note)"), {"note": item})
            tx.send(topic, item)
        return tx.gid

    assert app.test_client().post("/orders/tea").status_code == 200
    assert bank.notes() == ["tea"]
    assert [message.text for message in messages_in(broker.url, topic)] == ["tea"]
    session.remove()
    engine.dispose()
    with app.app_context():
        ts.client.close()


def test_each_application_has_a_client_of_its_own(broker: BrokerProcess, group: str) -> None:
    ts = Tallystick(timeout=3.0)
    apps = [application(ts, broker, f"{group}.{number}") for number in range(2)]
    clients = []
    for app in apps:
        with app.app_context():
            clients.append(ts.client)
            assert ts.client is clients[-1]
    assert clients[0] is not clients[1]
    for number, client in enumerate(clients):
        gid = client.new_gid()
        client.prepare(gid, [tallystick.outgoing("t", "x")])
        assert client.transaction_state(gid).group == f"{group}.{number}"
        client.rollback(gid)
        client.close()


def test_an_application_without_the_extension_is_told_what_to_do() -> None:
    ts = Tallystick()
    with Flask(__name__).app_context(), pytest.raises(TallystickError, match=r"call ts.init_app\(app\)"):
        _ = ts.client


def test_check_backs_come_to_the_path_of_the_configuration(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    contexts: list[str] = []

    def open_database() -> sqlite3.Connection:
        contexts.append(current_app.name)
        return sqlite3.connect(bank.path)

    ts = Tallystick(database=open_database, check=CheckBack(after=0.2))
    with wsgi_server() as server:
        address = f"http://127.0.0.1:{server.server_port}"
        config = {"TALLYSTICK_CHECK_PATH": "/tallystick/check", "TALLYSTICK_PUBLIC_URL": f"{address}/"}
        app = application(ts, broker, group, **config)
        server.set_app(app)
        with app.app_context():
            client = ts.client
            gid = client.new_gid()
            client.prepare(gid, [tallystick.outgoing(topic, "lost")])
            told = client.transaction_state(gid)
            assert (told.check_via, told.check_target) == ("url", f"{address}/tallystick/check")
            eventually(lambda: client.outcome(gid) == "rolled_back")
            client.close()
    assert set(contexts) == {app.name}


def test_a_check_path_needs_a_database(broker: BrokerProcess, group: str) -> None:
    with pytest.raises(TallystickError, match=r"Tallystick\(database=...\)"):
        application(Tallystick(), broker, group, TALLYSTICK_CHECK_PATH="/check")


def test_clean_is_a_command(broker: BrokerProcess, bank: Bank, group: str) -> None:
    app = application(Tallystick(database=bank.open), broker, group)
    run = app.test_cli_runner().invoke
    assert run(args=["tallystick", "clean", "--older-than", "12h"]).output == (
        "barrier: 0\ninbox: 0\nprepared: 0\ndigest: 0\n"
    )
    assert "is not a duration" in run(args=["tallystick", "clean", "--older-than", "soon"]).output
    assert "there is no database to clean" in (
        application(Tallystick(), broker, group).test_cli_runner().invoke(args=["tallystick", "clean"]).output
    )
    with app.app_context():
        app.extensions["tallystick"].client.close()


def test_a_coroutine_function_is_refused(broker: BrokerProcess, topic: str, group: str) -> None:
    ts = Tallystick()
    app = application(ts, broker, group)

    @ts.subscribe(topic)
    async def handle(message: Message) -> None: ...

    done = app.test_cli_runner().invoke(args=["tallystick", "consume"])
    assert "an async handler needs AsyncClient" in str(done.exception)


PROGRAM = """
import sqlite3
from flask import Flask, current_app
from tallystick.flask import Tallystick

ts = Tallystick()

def open_bank():
    return sqlite3.connect(current_app.config["BANK"])

@ts.subscribe("{topic}", exactly_once=open_bank)
def handle(message, conn):
    conn.execute("insert into ledger (note) values (?)", (f"{{current_app.name}} {{message.text}}",))

def create_app():
    app = Flask("shop")
    app.config.from_prefixed_env()
    ts.init_app(app)

    @app.post("/orders/<item>")
    def order(item):
        conn = open_bank()
        try:
            with ts.transaction(conn, wait=True) as tx:
                conn.execute("insert into ledger (note) values (?)", (item,))
                tx.send("{topic}", item)
        finally:
            conn.close()
        return {{"outcome": ts.client.outcome(tx.gid)}}

    with app.app_context():
        ts.client.info()  # before any fork: a worker gets connections of its own
    return app

app = create_app()
"""


@pytest.fixture
def program(tmp_path: Path, broker: BrokerProcess, bank: Bank, topic: str, group: str) -> dict[str, str]:
    """An application in a file, and the environment that it is run with."""
    (tmp_path / "shop.py").write_text(PROGRAM.format(topic=topic))
    return {
        "FLASK_TALLYSTICK_URL": broker.url,
        "FLASK_TALLYSTICK_GROUP": group,
        "FLASK_BANK": str(bank.path),
        "FLASK_APP": "shop",
    }


def test_consume_is_a_command_that_ends_with_sigterm(
    program: dict[str, str], broker: BrokerProcess, bank: Bank, topic: str, tmp_path: Path
) -> None:
    with tallystick.Client(broker.url) as client:
        client.send(topic, "tea")
    command = [sys.executable, "-m", "flask", "tallystick", "consume"]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **program}) as process:
        try:
            eventually(lambda: bank.notes() == ["shop tea"])
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


@pytest.mark.full
def test_the_workers_of_gunicorn_share_a_client_that_was_made_before_their_fork(
    program: dict[str, str], bank: Bank, tmp_path: Path
) -> None:
    options = ["--preload", "--workers", "2", "--chdir", str(tmp_path), "--bind", "127.0.0.1:{port}"]
    runner = ["env", *(f"{name}={value}" for name, value in program.items())]
    with LocalService("gunicorn", [*runner, *module("gunicorn", *options, "shop:app")], tmp_path / "log") as served:
        for number in range(6):
            request = urllib.request.Request(f"{served.url}/orders/item-{number}", method="POST")
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.load(answer) == {"outcome": "committed"}, served.log_text()
    assert bank.notes() == [f"item-{number}" for number in range(6)]
