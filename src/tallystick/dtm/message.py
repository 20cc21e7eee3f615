"""What every message has, and the steps of its life, written once for threads and for asyncio."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypedDict

import msgspec

from tallystick.barrier.adapters.base import Adapter
from tallystick.barrier.errors import AlreadyDecided
from tallystick.barrier.operations.barrier import Decision
from tallystick.barrier.operations.identity import whereabouts
from tallystick.client import CallOptions, CallsNotFinished, CheckBack, outgoing_call
from tallystick.client.base.calls import RemarkedOptions, wait_seconds
from tallystick.client.base.databases import Door
from tallystick.client.seam import ClientSeam
from tallystick.client.transactions.block import Block
from tallystick.client.transactions.script import InDatabase, OnLoop, Script, UserCode
from tallystick.core.calls import OutgoingCall
from tallystick.core.dtm_mark import MSG_REMARK
from tallystick.core.errors import InvalidRequest, OutcomeUnknown, TallystickError, TransactionFailed
from tallystick.core.urls import TOPIC_SCHEME
from tallystick.dtm.branch import Barrier
from tallystick.dtm.errors import Duplicated, Failure

log = logging.getLogger("tallystick.dtm")

GROUP = "dtm"
"""The producer group of messages that were made with the address of a broker and nothing else."""


class MsgOptions(TypedDict, total=False):
    """What may be said of a message; what is not said is the broker's own setting."""

    timeout_to_fail: float
    """Seconds until a check-back."""
    retry_interval: float
    """Seconds until the second try of a call; the wait doubles from there."""
    request_timeout: float
    """Seconds that a call or a check-back may take."""
    branch_headers: dict[str, str]
    """Sent with each of them."""
    decider: str
    """The one of the client's deciders that knows the outcome, where the business is in Redis or MongoDB."""


class TwoPhaseMessage:
    """A gid, calls and options."""

    def __init__(self, seam: ClientSeam, gid: str | None, *, answers: bool, options: MsgOptions) -> None:
        self._api = seam.operations
        self.gid = self._api.new_gid() if gid is None else gid
        self._own_gid = gid is not None
        self.timeout_to_fail = options.get("timeout_to_fail")
        self.retry_interval = options.get("retry_interval")
        self.request_timeout = options.get("request_timeout")
        self.branch_headers = options.get("branch_headers")
        self._seam = seam
        self._table = seam.settings.barrier_table
        self._answers = answers
        self._source = options.get("decider")
        self._decider = None if self._source is None else seam.decider(self._source)
        if self._source is not None and self._decider is None:
            raise InvalidRequest(f"decider: the client has none of the name {self._source!r}", field="decider")
        self._steps: list[tuple[str, Any]] = []
        self._delay: float | None = None
        self._concurrent = False
        self._wait = 0.0
        self._prepared = False

    def add(self, url: str, payload: Any = None) -> Self:
        """Add a call. `http(s)://...`, or gRPC as dtm has it: `host:port/package.Service/Method`.

        Bytes go as they are, text as UTF-8, a protobuf message as its bytes, anything else as JSON.
        """
        self._steps.append((_with_scheme(url), payload))
        return self

    def add_topic(self, topic: str, payload: Any = None) -> Self:
        """Add a call to each subscriber of a call topic."""
        self._steps.append((f"{TOPIC_SCHEME}{topic}", payload))
        return self

    def set_delay(self, seconds: float) -> Self:
        """Make no call before the message is that old."""
        self._delay = seconds
        return self

    def set_wait_result(self, wait: bool | float = True) -> Self:
        """Have the end of the message wait (60 s, or `wait` seconds) until each call was answered once."""
        self._wait = wait_seconds(wait)
        return self

    def set_concurrent(self) -> Self:
        """Make all calls at once, not one after the other."""
        self._concurrent = True
        return self

    # What the broker is told

    def _calls(self) -> list[OutgoingCall]:
        if not self._steps:
            raise InvalidRequest("the message has no calls; add(url, payload) comes first", field="calls")
        options: dict[str, Any] = {
            "headers": self.branch_headers,
            "timeout": self.request_timeout,
            "delay": self._delay,
        }
        return [outgoing_call(url, _encoded(payload), **options) for url, payload in self._steps]

    def _options(self) -> CallOptions:
        return RemarkedOptions(concurrent=self._concurrent, retry=self.retry_interval, remark=MSG_REMARK)

    def _check(self, query_prepared: str | None) -> CheckBack:
        if query_prepared:
            url = _with_scheme(query_prepared)
            after, timeout = self.timeout_to_fail, self.request_timeout
            return CheckBack(url=url, after=after, headers=self.branch_headers, timeout=timeout)
        if not self._answers:
            raise InvalidRequest(
                "query_prepared: nobody could answer a check-back. Name a URL, or give Msg a client with a group, "
                "as in Msg(tallystick.Client(url, group='bank-a'))",
                field="query_prepared",
            )
        own = self._seam.settings.check
        return own if self.timeout_to_fail is None else msgspec.structs.replace(own, after=self.timeout_to_fail)

    async def _prepare(self, query_prepared: str | None) -> str | None:
        """Returns the name of the database that a check-back would look into, if the client answers by itself."""
        check = self._check(query_prepared)
        source = (self._source or await self._seam.given_source()) if check.by_group else None
        if check.by_group and source is None:
            raise InvalidRequest(
                "query_prepared: nobody could answer a check-back, because the client does not know the database yet. "
                "Give it a way in, Client(..., database=open_connection), name a URL, or use do_and_submit_db",
                field="query_prepared",
            )
        options = self._options()
        await self._api.prepare(
            self.gid, [], calls=self._calls(), call_options=options, check=check, source=source or ""
        )
        self._prepared = True
        return source

    async def _submit(self) -> None:
        if self._prepared:
            await self._api.commit(self.gid, wait=self._wait)
        else:
            await self._api.send_calls(self._calls(), call_options=self._options(), gid=self.gid, wait=self._wait)

    async def _abort(self) -> None:
        await self._api.rollback(self.gid)

    async def _wait_for_calls(self, block: Block) -> None:
        if self._wait:
            await block.wait_for_calls(self._wait)

    # Prepare, business, submit

    def _do_and_submit(self, query_prepared: str | None, barrier: Barrier, business: Callable[[], Any]) -> Script[Any]:
        barrier.needed_source = yield OnLoop(lambda: self._prepare(query_prepared))
        try:
            value = yield UserCode(business)
        except Exception as error:
            # A Failure that came after the commit, or of a commit in doubt, must not undo what may be done; nor what
            # another attempt under the same gid has done.
            if isinstance(error, Failure) and not barrier.may_be_committed and not self._own_gid:
                yield from self._tell("rolled_back")
            else:
                door = barrier.door or self._seam.given_door
                yield from self._tell((yield from self._find_out(door)))
            raise
        yield OnLoop(self._submit_what_is_done)
        return value

    async def _submit_what_is_done(self) -> None:
        """After the business: no broker can change that it is done. What does not reach one is asked for."""
        try:
            await self._submit()
        except TallystickError as error:
            if not error.retryable:
                raise
            if self._wait:
                raise CallsNotFinished(self.gid, None, f"the broker was not told: {error}") from error
            log.warning("the submit of %s is left to the check-back: %s", self.gid, error)

    def _block(self, query_prepared: str | None, adapter: Adapter) -> Block:
        block = self._seam.new_block(
            adapter,
            prepare="early",
            check=self._check(query_prepared),
            gid=self.gid,
            wait=True,
            call_options=self._options(),
        )
        block.calls.extend(self._calls())
        return block

    def _do_in_block(self, block: Block, business: Callable[[], Any]) -> Script[Any]:
        door: Door | None = None
        try:
            yield from block.prepare_early()
            # Now: a connection that breaks in its commit could not be asked.
            door = Door.into(block.adapter, (yield InDatabase(whereabouts(table=self._table))))
            value = yield UserCode(business)
        except BaseException as error:
            yield from block.leave(error)
            if isinstance(error, TransactionFailed) and isinstance(error.__cause__, AlreadyDecided):
                raise Duplicated(str(error)) from error
            raise
        try:
            yield from block.leave(None)
        except OutcomeUnknown as doubt:
            decision = yield from self._find_out(door)
            yield from self._tell(decision)
            if decision == "rolled_back":
                raise TransactionFailed(f"the local commit of {self.gid} failed, nothing was changed") from doubt
            if decision == "running":
                raise
        return value

    def _find_out(self, door: Door | None) -> Script[Decision]:
        """What the barrier says of the local transaction, over a connection of its own; `running`: nobody knows."""
        truth = door or self._decider
        if truth is None:
            log.warning("what became of %s is left to the check-back", self.gid)
            return "running"
        try:
            decision: Decision = yield OnLoop(lambda: self._seam.decide(self.gid, truth))
        except Exception as failure:
            log.warning("what became of %s is left to the check-back: %s", self.gid, failure)
            return "running"
        return decision

    def _tell(self, decision: Decision) -> Script[None]:
        """Tell the broker an outcome that is certain. Should it not hear, it will ask."""
        tell: dict[Decision, Callable[[], Awaitable[Any]]] = {
            "committed": lambda: self._api.commit(self.gid),
            "rolled_back": self._abort,
        }
        if decision == "running":
            return
        try:
            yield OnLoop(tell[decision])
        except Exception as failure:
            log.warning("the outcome of %s, %s, is left to the check-back: %s", self.gid, decision, failure)


def _with_scheme(url: str) -> str:
    return url if "://" in url else f"grpc://{url}"


def _encoded(payload: Any) -> Any:
    serialize = getattr(payload, "SerializeToString", None)  # protobuf, which need not be imported for this
    return payload if serialize is None else serialize()
