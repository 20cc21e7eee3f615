"""The store's own state in bulk: tables as Arrow, and the ledger of batches."""

from __future__ import annotations

import asyncio
from typing import get_args

from starlette.requests import Request
from starlette.responses import Response

from tallystick.api.http import arrow_tables
from tallystick.api.http.bodies import respond
from tallystick.api.http.people import BatchIn
from tallystick.api.http.routes.context import body_of, broker_of, number
from tallystick.core.calls import CallState
from tallystick.core.errors import InvalidRequest, NotFound
from tallystick.core.ids import new_gid
from tallystick.core.names import check_app, check_name
from tallystick.core.ops import CommitBatch, OpResult
from tallystick.core.wire import ARROW, LedgerView, TransactionState
from tallystick.store.protocol import ForgetApp, TableName, TableQuery

MOST_ROWS = 100_000
STATES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(get_args(TableName), (*get_args(TransactionState), "pending")),
    "calls": tuple(state for state in get_args(CallState) if state != "held"),  # of transactions that have an outcome
}


def _table_of(request: Request) -> TableName:
    name = request.path_params["table"]
    tables: dict[str, TableName] = {table: table for table in get_args(TableName)}
    if name not in tables:
        raise NotFound(f"there is no table {name[:80]!r}; the tables are {', '.join(tables)}", field="table")
    return tables[name]


def _state_of(request: Request, table: TableName) -> str | None:
    state = request.query_params.get("state")
    if state is not None and state not in STATES[table]:
        raise InvalidRequest(f"state: {state[:40]!r} is not one of {', '.join(STATES[table])}", field="state")
    return state


async def page(request: Request) -> Response:
    broker, table = broker_of(request), _table_of(request)
    group = request.query_params.get("group")
    older_than = number(request, "older_than_ms", -1, 0) if "older_than_ms" in request.query_params else None
    query = TableQuery(
        table,
        number(request, "limit", 20_000, 1, MOST_ROWS),
        request.query_params.get("after"),
        request.query_params.get("before"),
        _state_of(request, table),
        None if group is None else check_name(group, "group"),
        None if older_than is None else broker.clock.now_ms() - older_than,
    )
    arrow_tables.schema(table)
    found = await broker.page(query)
    content = await asyncio.to_thread(arrow_tables.stream, table, found.columns)
    headers = {} if found.next is None else {"Tallystick-Next": found.next}
    return Response(content, media_type=ARROW, headers=headers)


async def splits(request: Request) -> Response:
    broker, table = broker_of(request), _table_of(request)
    state = _state_of(request, table)
    most = number(request, "n", 8, 1, 1_000)
    return respond(request, {"splits": await broker.look(lambda store: store.splits(table, state, most))})


# --- the ledger --------------------------------------------------------------------------------------------------


def _app_of(request: Request) -> str:
    return check_app(request.path_params["app"])


async def list_ledger(request: Request) -> Response:
    after, limit = request.query_params.get("after", ""), number(request, "limit", 1_000, 1, 10_000)
    return respond(request, {"apps": await broker_of(request).look(lambda store: store.ledgers(after, limit))})


async def show_ledger(request: Request) -> Response:
    return respond(request, await _known(request, _app_of(request)))


async def _known(request: Request, app: str) -> LedgerView:
    found = await broker_of(request).look(lambda store: store.ledger(app))
    if found is None:
        raise NotFound(f"there is no application {app!r} in the ledger", field="app")
    return found


async def commit_batch(request: Request) -> Response:
    app, broker, sent = _app_of(request), broker_of(request), await body_of(request, BatchIn)
    version = int(request.path_params["version"])
    if version > 2**62:
        raise InvalidRequest(f"version: {version} is too large a number", field="version")
    gid = sent.gid or new_gid(broker.store.id)
    result = await broker.one(CommitBatch(app, version, gid, sent.parts, sent.digest))
    known = await _known(request, app)
    return respond(
        request,
        {
            "app": app,
            "version": version,
            "last": known.version,
            "duplicate": isinstance(result, OpResult) and result.duplicate,
            "gid": known.gid if known.version == version else None,
            "messages": known.messages if known.version == version else None,
        },
    )


async def forget_app(request: Request) -> Response:
    await broker_of(request).one(ForgetApp(_app_of(request)))
    return Response(status_code=204)
