"""A bank's service as a user of PyPI's dtmcli would write it: branches and a check-back, each behind dtmcli's barrier.

Run as a process of its own with one argument, JSON: `port` and `database` (how to connect to MariaDB). Every request
is kept and shown under `/seen`. `/plan` tells how the next requests of a path go: `refuse` answers FAILURE, `ongoing`
425, `break` 500 before anything is done, `lose` does the work and answers 500, `die` does the work and kills it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pymysql
from dtmcli import utils
from dtmcli.barrier import AutoCursor, BranchBarrier

DATABASE: dict[str, Any] = {}
PLANS: defaultdict[str, deque[str]] = defaultdict(deque)
SEEN: list[dict[str, Any]] = []
LOCK = threading.Lock()

SUCCESS = (200, {"dtm_result": "SUCCESS"})
FAILURE = (409, {"dtm_result": "FAILURE"})
ONGOING = (425, {"dtm_result": "ONGOING"})
BROKEN = (500, {"message": "broken on purpose"})

Answer = tuple[int, dict[str, Any]]


def barrier_of(query: dict[str, str]) -> Any:
    return BranchBarrier(query["trans_type"], query["gid"], query["branch_id"], query["op"])


def open_cursor() -> Any:
    return AutoCursor(pymysql.connect(**DATABASE).cursor())


def add_to_account(query: dict[str, str], user: int, amount: int) -> Answer:
    sql = f"update account set balance = balance + {amount} where user_id = {user}"
    with open_cursor() as cursor:
        barrier_of(query).call(cursor, lambda inside: utils.sqlexec(inside, sql))
    return SUCCESS


def query_prepared(query: dict[str, str]) -> Answer:
    try:
        with open_cursor() as cursor:
            barrier_of(query).query_prepared(cursor)
    except utils.DTMFailureError:
        return FAILURE
    return SUCCESS


def work(path: str, query: dict[str, str], body: Any) -> Answer:
    if path == "/query_prepared":
        return query_prepared(query)
    sign = {"/in": 1, "/out": -1}[path]
    return add_to_account(query, body["user"], sign * body["amount"])


def planned(path: str, query: dict[str, str], body: Any) -> Answer:
    with LOCK:
        plan = PLANS[path].popleft() if PLANS[path] else "work"
    if plan in ("refuse", "ongoing", "break"):
        return {"refuse": FAILURE, "ongoing": ONGOING, "break": BROKEN}[plan]
    answer = work(path, query, body)
    if plan == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return BROKEN if plan == "lose" else answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _serve(self, raw: bytes) -> None:
        parts = urlsplit(self.path)
        body = json.loads(raw) if raw else None
        if parts.path == "/seen":
            self._answer(200, SEEN)
        elif parts.path == "/plan":
            with LOCK:
                for path, plans in body.items():
                    PLANS[path].extend(plans)
            self._answer(200, {})
        else:
            query = dict(parse_qsl(parts.query))
            seen = {"method": self.command, "path": parts.path, "query": query, "body": raw.decode(), "status": 0}
            seen["headers"] = {name.lower(): value for name, value in self.headers.items()}
            with LOCK:
                SEEN.append(seen)
            status, content = planned(parts.path, query, body)
            seen["status"] = status
            self._answer(status, content)

    def _answer(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *rest: Any) -> None:
        """Quiet: what was asked is under /seen."""


def end_with_the_tests() -> None:
    """Standard input is a pipe that only the tests hold."""
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    DATABASE.update(settings["database"])
    threading.Thread(target=end_with_the_tests, daemon=True).start()
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer(("127.0.0.1", settings["port"]), Handler).serve_forever()
