"""The extensions' check-back with a verifier: nobody but a broker is answered."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask

from asgi import asgi_server
from tallystick import Verifier, fastapi, flask
from tallystick.barrier import create_tables
from tallystick.core.clock import SystemClock
from tallystick.core.ids import new_nonce
from tallystick.core.signing import SIGNATURE_HEADER, SigningKey, sign

SECRET = "s" * 40
PATH = "/tallystick/check"


def signed(path: str) -> dict[str, str]:
    now_ms = SystemClock().now_ms()
    return {SIGNATURE_HEADER: sign(SigningKey("a", SECRET), "GET", "shop:8080", path, now_ms, new_nonce(), b"")}


@pytest.fixture
def database(tmp_path: Path) -> Any:
    def opened() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.db")

    connection = opened()
    create_tables(connection)
    connection.close()
    return opened


def decided(database: Any) -> list[Any]:
    connection = database()
    found = connection.execute("select gid from tallystick_barrier where op = 'msg'").fetchall()
    connection.close()
    return [gid for (gid,) in found]


def refused_then_answered(client: httpx.Client, path: str, database: Any) -> None:
    assert client.get(path).status_code == 401
    assert decided(database) == []
    headers = signed(path)
    assert client.get(path, headers=headers).json()["outcome"] == "rolled_back"
    assert client.get(path, headers=headers).status_code == 401
    assert decided(database) == ["g1"]


def test_fastapi(database: Any) -> None:
    app = FastAPI()
    fastapi.Tallystick(group="shop").mount(app, PATH, database, verifier=Verifier({"a": SECRET}))
    with asgi_server(app) as url, httpx.Client(base_url=url) as client:
        refused_then_answered(client, f"{PATH}/?gid=g1", database)


def test_flask(database: Any) -> None:
    app = Flask("shop")
    app.config["TALLYSTICK_CHECK_PATH"] = PATH
    flask.Tallystick(app, database=database, verifier=Verifier({"a": SECRET}))
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop") as client:
        refused_then_answered(client, f"{PATH}?gid=g1", database)
