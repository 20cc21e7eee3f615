"""The store's own state in bulk: tables as Arrow, and the ledger of batches."""

from __future__ import annotations

import asyncio
from typing import Annotated, get_args

from msgspec import Meta, Struct

from tallystick.api.http import arrow_tables
from tallystick.api.http.json_messages import BatchIn
from tallystick.api.http.route import Asked
from tallystick.api.serving.asgi import HttpAnswer
from tallystick.core.calls import CallState
from tallystick.core.errors import InvalidRequest, NotFound
from tallystick.core.names import NAME_PATTERN, check_app
from tallystick.core.ops import CommitBatch
from tallystick.core.wire import ARROW, LedgerView, Split, TableName, TransactionState

STATES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(get_args(TableName), (*get_args(TransactionState), "pending")),
    "calls": tuple(state for state in get_args(CallState) if state != "held"),  # of transactions that have an outcome
}


class TablePageQuery(Struct):
    limit: Annotated[int, Meta(ge=1, le=100_000, description="rows at most")] = 20_000
    after: Annotated[str, Meta(description="`Tallystick-Next` of the page before, or of a split")] | None = None
    before: Annotated[str, Meta(description="of a split")] | None = None
    state: (
        Annotated[
            str,
            Meta(
                description="prepared, parked, pending (both), committed or rolled_back; of calls: waiting or parked",
            ),
        ]
        | None
    ) = None
    group: Annotated[str, Meta(pattern=NAME_PATTERN, description="of this group")] | None = None
    columns: Annotated[str, Meta(description="names of those that are wanted, with commas; all by default")] | None = (
        None
    )
    older_than_ms: Annotated[int, Meta(ge=0, le=2**62, description="transactions made longer ago than this")] | None = (
        None
    )


class SplitsQuery(Struct):
    n: Annotated[int, Meta(ge=1, le=1_000, description="how many at most")] = 8
    state: Annotated[str, Meta(description="as for the table")] | None = None


class SplitList(Struct):
    splits: list[Split]


class LedgerQuery(Struct):
    limit: Annotated[int, Meta(ge=1, le=10_000, description="how many at most")] = 1_000
    after: Annotated[str, Meta(description="the application before the first")] = ""


class LedgerList(Struct):
    apps: list[LedgerView]


class BatchOut(Struct):
    """`duplicate` if the version was decided before; `last` is the newest one of the application."""

    app: str
    version: int
    last: int
    duplicate: bool
    gid: str | None
    messages: int | None


def _table_of(asked: Asked) -> TableName:
    name = asked.path("table")
    tables: dict[str, TableName] = {table: table for table in get_args(TableName)}
    if name not in tables:
        raise NotFound(f"there is no table {name[:80]!r}; the tables are {', '.join(tables)}", field="table")
    return tables[name]


def _check_state(state: str | None, table: TableName) -> None:
    if state is not None and state not in STATES[table]:
        raise InvalidRequest(f"state: {state[:40]!r} is not one of {', '.join(STATES[table])}", field="state")


async def page(asked: Asked, query: TablePageQuery) -> HttpAnswer:
    table = _table_of(asked)
    _check_state(query.state, table)
    kinds = arrow_tables.chosen(table, query.columns)  # first: without Arrow there is nothing to look for
    found = await asked.door.page(
        table, query.limit, query.after, query.before, query.state, query.group, query.older_than_ms
    )
    content = await asyncio.to_thread(arrow_tables.stream, kinds, found.columns)
    headers = {} if found.next is None else {"Tallystick-Next": found.next}
    return HttpAnswer(content, ARROW, headers=headers)


async def splits(asked: Asked, query: SplitsQuery) -> SplitList:
    table = _table_of(asked)
    _check_state(query.state, table)
    return SplitList(await asked.door.splits(table, query.state, query.n))


# --- the ledger --------------------------------------------------------------------------------------------------


def _app_of(asked: Asked) -> str:
    return check_app(asked.path("app"))


async def list_ledger(asked: Asked, query: LedgerQuery) -> LedgerList:
    return LedgerList(await asked.door.ledgers(query.after, query.limit))


async def show_ledger(asked: Asked) -> LedgerView:
    return await asked.door.ledger(_app_of(asked))


async def commit_batch(asked: Asked, sent: BatchIn) -> BatchOut:
    app, version = _app_of(asked), asked.number("version")
    if version > 2**62:
        raise InvalidRequest(f"version: {version} is too large a number", field="version")
    gid = sent.gid or asked.door.new_gid_of(app)
    result = await asked.door.do(CommitBatch(app, version, gid, sent.parts, sent.digest))
    known = await asked.door.ledger(app)
    newest = known.version == version
    return BatchOut(
        app,
        version,
        known.version,
        result.duplicate,
        known.gid if newest else None,
        known.messages if newest else None,
    )


async def forget_app(asked: Asked) -> None:
    await asked.door.forget_app(_app_of(asked))
