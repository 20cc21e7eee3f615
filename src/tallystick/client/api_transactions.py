"""Transactions, as operations on a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallystick.client import reading
from tallystick.client.api_base import ApiBase, was_duplicate
from tallystick.client.calls import CallOptions, wait_seconds
from tallystick.client.calls_wait import wait_for_calls
from tallystick.client.settings import CheckBack
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import NotFound
from tallystick.core.message import OutgoingMessage
from tallystick.core.names import check_gid, check_name
from tallystick.core.ops import (
    Answer,
    AnswerChecks,
    Commit,
    Outcome,
    PartRef,
    Prepare,
    PreparePart,
    Rollback,
)
from tallystick.core.wire import CheckPoll, CheckRequest, TransactionView


class TransactionsApi(ApiBase):
    """For services that keep their own truth of an outcome; `transaction()` does all of this by itself."""

    def new_gid(self) -> str:
        """A new gid, which names the store of the broker that new transactions go to now, if that is known."""
        return self._core.new_gid()

    async def prepare(
        self,
        gid: str,
        messages: Sequence[OutgoingMessage],
        *,
        calls: Sequence[OutgoingCall] = (),
        call_options: CallOptions | None = None,
        check: CheckBack | None = None,
        check_after: float | None = None,
        source: str = "",
    ) -> bool:
        """Store half messages and calls; True if they were there already. Somebody must be able to answer a check-back.

        Messages are made with `outgoing`, calls with `outgoing_call`.
        """
        settings = self._core.settings
        runtime = self._core.runtime()
        group = settings.needs_group("prepare")
        how = (check or settings.check).on_the_wire(
            source, settings.check_after if check_after is None else check_after
        )
        broker = runtime.brokers.only or await runtime.brokers.of_gid(gid)
        options = None if call_options is None else call_options.on_the_wire()
        op = Prepare(check_gid(gid), group, list(messages), how, runtime.member, list(calls), options)
        return was_duplicate(await broker.ops.run(broker.check(op), settings.timeout))

    async def prepare_part(
        self,
        part: str,
        messages: Sequence[OutgoingMessage],
        *,
        gid: str,
        index: int = 0,
        ttl: float | None = None,
    ) -> bool:
        """Store half messages as a part, on the broker of `gid`, whose commit may claim it; True if it was there."""
        ttl_ms = None if ttl is None else round(ttl * 1000)
        op = PreparePart(check_gid(part, "part"), list(messages), index, ttl_ms)
        return was_duplicate(await self._on_gid(check_gid(gid), op))

    async def commit(self, gid: str, parts: Sequence[PartRef] = (), *, wait: bool | float = False) -> bool:
        """Give a transaction the outcome `committed`; True if it had it already.

        With `wait` (True: 60 s, or seconds) this stays until each of its calls was answered once, and raises
        `CallsNotFinished` unless all of them are done.
        """
        seconds = wait_seconds(wait)
        duplicate = was_duplicate(await self._on_gid(gid, Commit(check_gid(gid), list(parts))))
        if seconds:
            broker = await self._core.runtime().brokers.of_gid(gid)
            await wait_for_calls(broker, gid, seconds, surely_there=False)
        return duplicate

    async def rollback(self, gid: str, parts: Sequence[str] = ()) -> bool:
        """Give a transaction the outcome `rolled_back`; True if it had it already."""
        return was_duplicate(await self._on_gid(gid, Rollback(check_gid(gid), list(parts))))

    async def transaction_state(self, gid: str) -> TransactionView:
        """What the broker knows of a transaction; `NotFound` if nothing."""
        broker = await self._core.runtime().brokers.of_gid(check_gid(gid))
        return await reading.transaction(broker, gid, self._core.settings.timeout)

    async def outcome(self, gid: str) -> Outcome | None:
        """The outcome of a transaction; None if it has none, or is not known here."""
        try:
            state = (await self.transaction_state(gid)).state
        except NotFound:
            return None
        return state if state in ("committed", "rolled_back") else None

    async def poll_checks(
        self, group: str, *, max: int = 100, wait: float = 20.0, broker: str | None = None
    ) -> list[CheckRequest]:
        """Wait to be asked for outcomes of a group, for services that answer by themselves."""
        runtime = self._core.runtime()
        poll = CheckPoll(check_name(group, "group"), f"{runtime.member}.poll", max, round(wait * 1000))
        return await reading.poll_checks(self._broker(broker), poll)

    async def answer_checks(self, answers: Mapping[str, Answer], *, broker: str | None = None) -> None:
        """Answer what `poll_checks` of the same broker asked."""
        op = AnswerChecks(dict(answers))
        await self._broker(broker).ops.run(op, self._core.settings.timeout)
