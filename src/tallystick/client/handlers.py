"""Check-back handlers to mount in a web application, in one line.

    app.mount("/tallystick/check", handlers.asgi(open_connection))                     # Starlette, FastAPI
    app.wsgi_app = handlers.wsgi(open_connection, app.wsgi_app, "/tallystick/check")   # Flask
    application = handlers.wsgi(open_connection, get_wsgi_application(), "/tallystick/check")   # Django

In the place of `open_connection` may stand a decider, such as `RedisDecider(redis)`: what knows outcomes by itself.

The broker asks `GET ...?gid=...` and is told the outcome from the barrier, in dtm's words too: 200 committed, 409
rolled back, 425 not known yet. An error of any kind is a 500 and never an outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from urllib.parse import parse_qs, unquote

import msgspec

from tallystick.barrier.adapters.recognition import own_opener
from tallystick.barrier.errors import WrongDatabase
from tallystick.barrier.names import BARRIER_TABLE, checked_table
from tallystick.barrier.operations.barrier import Decision, decide
from tallystick.barrier.runner import run_sync
from tallystick.barrier.statement import Operation
from tallystick.client.answering.deciders import RememberedOutcomes, ask_decider, decide_sync
from tallystick.client.base.arguments import checked_decider
from tallystick.client.base.databases import Door, run_on_new
from tallystick.client.base.opened_connections import OpenedConnections
from tallystick.client.base.settings import Decider, OpenConnection
from tallystick.client.base.workers import Workers
from tallystick.client.proof.middleware import AsgiApp, Send, StartResponse, WsgiApp, asgi_if, wsgi_if
from tallystick.client.proof.requests import Environ, Receive, Scope, chosen
from tallystick.client.proof.verifier import Verifier
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_gid
from tallystick.core.wire import SOURCE_HEADER

log = logging.getLogger("tallystick.client")

_SOURCE_VARIABLE = f"HTTP_{SOURCE_HEADER.upper().replace('-', '_')}"

WAIT_SECONDS = 3.0
MOST_BODY = 64 * 1024  # a question has none
THREADS = 4

_ANSWERS: dict[Decision, tuple[int, str, str]] = {
    "committed": (200, "committed", "SUCCESS"),
    "rolled_back": (409, "rolled_back", "FAILURE"),
    "running": (425, "unknown", "ONGOING"),
}

Answer = tuple[int, bytes]


class _Checks:
    """What all kinds of handler know."""

    def __init__(self, truth: OpenConnection | Decider, table: str) -> None:
        if isinstance(truth, Decider) and not isinstance(truth, type):
            self._truth: OpenConnection | Decider = checked_decider(truth, "check")
        else:
            self._truth = own_opener(truth, "open_connection")
        self._table = checked_table(table)
        self.remembered = RememberedOutcomes()
        self._connections = OpenedConnections()

    def decide(self, gid: str, source: str) -> Answer:
        if isinstance(self._truth, Decider):
            return self._remember(gid, decide_sync(self._truth, gid))
        return self.decide_in(self._truth, gid, source)

    def decide_in(self, open_connection: OpenConnection, gid: str, source: str) -> Answer:
        self._connections.check(open_connection)
        adapter = self._connections.adapt_sync(open_connection, open_connection())
        try:
            return self._remember(gid, run_sync(adapter, self._operation(gid, source)))
        finally:
            adapter.close()

    async def decide_on(self, workers: Workers, gid: str, source: str) -> Answer:
        if isinstance(self._truth, Decider):
            return self._remember(gid, (await ask_decider(workers, self._truth, [gid]))[gid])
        return self._remember(gid, await run_on_new(workers, Door(self._truth), self._operation(gid, source)))

    def _operation(self, gid: str, source: str) -> Operation[Decision]:
        return decide(gid, wait=WAIT_SECONDS, table=self._table, source=source)

    def _remember(self, gid: str, decision: Decision) -> Answer:
        if decision != "running":
            self.remembered.put(gid, decision)
        return _told(decision)


class CheckAnswers:
    """Answers for a framework's own view, which may have several databases: the broker names the one that it means."""

    def __init__(self, databases: Sequence[OpenConnection], table: str = BARRIER_TABLE) -> None:
        self._databases = databases
        self._checks = _Checks(databases[0], table)

    def answer(self, method: str, query: str, source: str) -> Answer:
        """The status and the body."""
        try:
            gid, known = _asked(self._checks, method, query)
            return self._decide(gid, source) if known is None else known
        except Exception as failure:
            return _failed(failure)

    def _decide(self, gid: str, source: str) -> Answer:
        failed: Exception | None = None
        for open_connection in self._databases if source else self._databases[:1]:
            try:
                return self._checks.decide_in(open_connection, gid, source)
            except Exception as failure:
                # Not this one, or not now. What could not be asked is worse news than that another one was not meant.
                if failed is None or isinstance(failed, WrongDatabase):
                    failed = failure
        raise failed or InvalidRequest("there is no database that could be asked")


def asgi(
    open_connection: OpenConnection | Decider,
    app: AsgiApp | None = None,
    path: str = "",
    *,
    table: str = BARRIER_TABLE,
    verifier: Verifier | None = None,
) -> AsgiApp:
    """An ASGI application that answers check-backs; with `app`, only at `path`, and `app` gets everything else.

    `open_connection` may open a synchronous connection (it is then used on a thread) or an asynchronous one. With a
    `verifier` (or that of TALLYSTICK_SIGNING_KEYS_FILE) only a broker is answered.
    """
    checks = _Checks(open_connection, table)
    threads: list[Workers] = []  # made at the first request: a server may fork after it has loaded the application

    async def answer(method: str, query: str, source: str) -> Answer:
        try:
            gid, known = _asked(checks, method, query)
            if known is not None:
                return known
            if not threads:
                threads.append(Workers("tallystick-check", THREADS))
            return await checks.decide_on(threads[0], gid, source)
        except Exception as failure:
            return _failed(failure)

    async def respond(scope: Scope, _: Receive, send: Send) -> None:
        source = dict(scope["headers"]).get(SOURCE_HEADER.lower().encode(), b"").decode("latin-1")
        status, body = await answer(scope["method"], scope["query_string"].decode("latin-1"), unquote(source))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    proven = asgi_if(chosen(verifier), respond, MOST_BODY)

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if app is not None and (scope["type"] != "http" or scope["path"] != path):
            await app(scope, receive, send)
        elif scope["type"] == "http":
            await proven(scope, receive, send)

    return handle


def wsgi(
    open_connection: OpenConnection | Decider,
    app: WsgiApp | None = None,
    path: str = "",
    *,
    table: str = BARRIER_TABLE,
    verifier: Verifier | None = None,
) -> WsgiApp:
    """A WSGI application that answers check-backs; with `app`, only at `path`, and `app` gets everything else. With a
    `verifier` (or that of TALLYSTICK_SIGNING_KEYS_FILE) only a broker is answered."""
    checks = _Checks(open_connection, table)

    def answer(method: str, query: str, source: str) -> Answer:
        try:
            gid, known = _asked(checks, method, query)
            return checks.decide(gid, source) if known is None else known
        except Exception as failure:
            return _failed(failure)

    def respond(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        source = unquote(environ.get(_SOURCE_VARIABLE, ""))
        status, body = answer(environ["REQUEST_METHOD"], environ.get("QUERY_STRING", ""), source)
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [body]

    proven = wsgi_if(chosen(verifier), respond, MOST_BODY)

    def handle(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if app is not None and environ.get("PATH_INFO", "") != path:
            return app(environ, start_response)
        return proven(environ, start_response)

    return handle


def _asked(checks: _Checks, method: str, query: str) -> tuple[str, Answer | None]:
    """The gid in question, and the answer if it was given before."""
    if method != "GET":
        return "", (405, msgspec.json.encode({"error": "a check-back is a GET"}))
    gids = parse_qs(query).get("gid", [])
    if len(gids) != 1:
        raise InvalidRequest("give one gid: ?gid=...", field="gid")
    gid = check_gid(gids[0])
    known = checks.remembered.get(gid)
    return gid, None if known is None else _told(known)


def _told(decision: Decision) -> Answer:
    status, outcome, dtm_result = _ANSWERS[decision]
    return status, msgspec.json.encode({"outcome": outcome, "dtm_result": dtm_result})


def _failed(failure: Exception) -> Answer:
    if isinstance(failure, InvalidRequest):
        return 400, msgspec.json.encode({"error": failure.detail})
    log.error("a check-back could not be answered", exc_info=failure)
    return 500, msgspec.json.encode({"error": "the barrier could not be read; the service's log has the details"})
