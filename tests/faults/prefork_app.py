"""A WSGI service with one client for the whole module, made and used before the server forks (gunicorn --preload).

Settings come as JSON in PREFORK. `/run?name=N&count=N` runs that many transactions on several threads; `/sockets` tells
which sockets of the process lead to the broker, and which of those it had before the fork.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
from places import Place, opened

import tallystick

SETTINGS = json.loads(os.environ["PREFORK"])
PLACE = Place(*SETTINGS["place"])
THREADS = 4

client = tallystick.Client(SETTINGS["url"], group=SETTINGS["group"], check_after=2.0, database=PLACE.connect)


def transact(name: str, wait: bool = False) -> str:
    with opened(PLACE) as connection, client.transaction(connection, wait=wait) as tx:
        PLACE.run(connection, "insert into business values (%s, %s)", name, tx.gid)
        tx.send(SETTINGS["topic"], name)
    return tx.gid


def sockets() -> dict[int, int]:
    """Local port and descriptor of every connection of this process to the broker."""
    port = urlsplit(SETTINGS["url"]).port
    found = psutil.Process().net_connections("tcp")
    return {one.laddr.port: one.fd for one in found if one.raddr and one.raddr.port == port}


transact("before-the-fork", wait=True)  # no connection is made for it after this
BEFORE = sockets()


def run(query: dict[str, list[str]]) -> Any:
    name, count = query["name"][0], int(query["count"][0])
    with ThreadPoolExecutor(THREADS) as pool:
        gids = list(pool.map(transact, [f"{name}-{number}" for number in range(count)]))
    return {"pid": os.getpid(), "gids": gids}


def show_sockets(query: dict[str, list[str]]) -> Any:
    return {"pid": os.getpid(), "before": list(BEFORE), "now": list(sockets())}


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    page = {"/run": run, "/sockets": show_sockets}[environ["PATH_INFO"]]
    body = json.dumps(page(parse_qs(environ["QUERY_STRING"]))).encode()
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]
