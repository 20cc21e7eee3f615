"""Tokens, and the log of what was done by whom."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tallystick.api.http.route import Asked
from tallystick.core.token_records import MadeToken, TokenSpec, TokenView, token_of
from tallystick.core.wire import AuditPage


class TokenList(Struct):
    tokens: list[TokenView]


class AuditLogQuery(Struct):
    limit: Annotated[int, Meta(ge=1, le=10_000, description="lines at most")] = 100
    after: Annotated[str, Meta(description="`next` of the page before")] | None = None
    who: Annotated[str, Meta(description="only what this one did")] | None = None
    action: Annotated[str, Meta(description="only deeds of this kind")] | None = None
    since: Annotated[int, Meta(ge=0, le=2**62, description="not before, in milliseconds since the epoch")] | None = None


async def create(asked: Asked, sent: TokenSpec) -> MadeToken:
    made, record = token_of(sent, asked.door.now_ms())
    await asked.door.put_token(record)
    return made


async def list_(asked: Asked) -> TokenList:
    return TokenList(await asked.door.tokens())


async def revoke(asked: Asked) -> None:
    await asked.door.drop_token(asked.path("name"))


async def audit(asked: Asked, query: AuditLogQuery) -> AuditPage:
    return await asked.door.audit(query.limit, query.after, query.who, query.action, query.since)
