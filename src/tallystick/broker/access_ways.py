"""The ways through a broker's door that are about access itself: tokens, and what was done by whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from tallystick.broker.auditing import ACTIONS
from tallystick.broker.caller import Caller
from tallystick.core.errors import InvalidRequest
from tallystick.core.token_records import TokenRecord, TokenView, shown
from tallystick.core.wire import AuditPage
from tallystick.store.protocol import AuditQuery, DropToken, PutToken, Store

T = TypeVar("T")


class AccessWays:
    """Part of a door, which acts and sees for its caller."""

    _caller: Caller
    _store: Store

    async def _act(self, op: Any, gives: type[T] = object) -> T:  # type: ignore[assignment]
        raise NotImplementedError

    async def _see(self, see: Callable[[Store], T], what: str, *names: str) -> T:
        raise NotImplementedError

    async def put_token(self, record: TokenRecord) -> None:
        """Keep a token, in the name of whoever asks for it."""
        await self._act(PutToken(replace(record, created_by=self._caller.identity.name)))

    async def drop_token(self, name: str, token_id: str = "") -> None:
        """Revoke a token; with an id, only if that one has the name."""
        await self._act(DropToken(name, token_id))

    async def tokens(self) -> list[TokenView]:
        self._caller.may_see("tokens")
        return [shown(record) for record in self._store.tokens()]

    async def audit(
        self,
        limit: int,
        after: str | None = None,
        who: str | None = None,
        action: str | None = None,
        since: int | None = None,
    ) -> AuditPage:
        """What was done, the newest first."""
        if action is not None and action not in ACTIONS:
            raise InvalidRequest(
                f"action: there is no {action[:40]!r}; there are {', '.join(sorted(ACTIONS))}", field="action"
            )
        query = AuditQuery(limit, after, who, action, since)
        return AuditPage(*await self._see(lambda store: store.audit(query), "audit"))
