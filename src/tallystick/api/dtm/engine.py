"""dtm's operations on the broker, for whichever protocol they came by."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import NoReturn, TypeVar

from tallystick.api.dtm import errors
from tallystick.api.dtm.errors import DtmError, DtmOngoing, refusal_of
from tallystick.api.dtm.states import (
    FIRST_LOOK_SECONDS,
    LOOK_SECONDS,
    finished,
    judge,
    pass_over,
    patience,
    status_of,
)
from tallystick.api.dtm.translate import (
    Trans,
    check_type,
    checked_gid,
    commit_op,
    delay_of,
    gid_of,
    prepare_op,
    send_ops,
    subscriber_url,
    timeout_of,
    url_of,
)
from tallystick.broker.door import WEIGHT, BrokerDoor, Whole, raise_refusal
from tallystick.core.calls import CallsView
from tallystick.core.dtm_mark import DTM_GROUP
from tallystick.core.errors import (
    AlreadyResolved,
    Conflict,
    DifferentContent,
    Forbidden,
    NotFound,
    OutcomeConflict,
    TallystickError,
)
from tallystick.core.ops import ClientOp, Commit, OpResult, Rollback

TRIES = 3  # a submit may meet a prepare or a check-back on its way; after one look more there is nothing left to meet
T = TypeVar("T")
_DONE = OpResult()
_OF_STATE = (AlreadyResolved.code, DifferentContent.code, OutcomeConflict.code)


class Dtm:
    """Every operation raises DtmFailure, DtmOngoing or DtmError, or has been carried out durably."""

    def __init__(self, door: BrokerDoor) -> None:
        self._door = door

    def new_gid(self) -> str:
        return self._door.new_gid()

    # --- transactions ----------------------------------------------------------------------------------------------

    async def prepare(self, trans: Trans, weight: int = WEIGHT) -> None:
        """Store the branches; nothing is called before the submit or the check-back. A repetition changes nothing."""
        check_type(trans.trans_type)
        op = prepare_op(trans)
        if (await self._batch([op], weight)).error:
            found = await self._known(op.gid)
            if status_of(found) != "prepared":
                raise errors.cannot_prepare(status_of(found))
            # As in dtm, what was stored first stands. But a gid of another producer is not this transaction.
            if found.transaction.group != DTM_GROUP:
                raise errors.not_of_dtm(op.gid)

    async def submit(self, trans: Trans, weight: int = WEIGHT) -> None:
        """Commit what was prepared, or what this request brings; with `wait_result`, wait for one pass over it."""
        check_type(trans.trans_type)
        await self._submit(trans, weight)
        if trans.wait_result:
            await self._wait(trans)

    async def _submit(self, trans: Trans, weight: int) -> None:
        """One group commit in the usual case: whoever named a check-back has prepared, whoever did not has not."""
        commit = commit_op(trans)
        prepared = bool(trans.query_prepared)
        for _ in range(TRIES):
            result = await (self._commit(commit, weight) if prepared else self._send(trans, commit, weight))
            if result.duplicate or result.error == OutcomeConflict.code:
                return await self._submitted_before(commit.gid)
            if not result.error:
                return None
            prepared = not prepared  # not known to the broker, or known after all
        raise DtmOngoing(f"gid {commit.gid} is prepared and submitted by several at once; try again", retryable=True)

    async def _send(self, trans: Trans, commit: Commit, weight: int) -> OpResult:
        """What the request brings. Where that cannot be taken, a prepare may have been: then its branches count, and a
        local transaction that is committed by now must not be refused."""
        try:
            return await self._batch(send_ops(trans), weight)
        except DtmError as refused:
            result = await self._commit(commit)
            if result.error == NotFound.code:
                raise refused from None
            return result

    async def _commit(self, op: Commit, weight: int = WEIGHT) -> OpResult:
        """Commit what came through dtm's interfaces. A transaction of another producer group is refused."""
        result = await _told(self._door.commit_of_group(op, DTM_GROUP, weight))
        if result.error == Forbidden.code:
            found = await self._door.whole(op.gid)
            if found is not None and found.transaction.group != DTM_GROUP:
                raise errors.not_of_dtm(op.gid)
        return await _told(_checked(result))

    async def _submitted_before(self, gid: str) -> None:
        """A repeated submit runs nothing again. It is refused where dtm refuses it: when everything is over."""
        found = await self._known(gid)
        by_check = found.transaction.resolved_by == "check"  # then this may be the first submit, and it is fulfilled
        if found.transaction.group not in ("", DTM_GROUP):
            raise errors.not_of_dtm(gid)
        if status_of(found) == "failed" or (status_of(found) == "succeed" and not by_check):
            raise errors.cannot_submit(status_of(found))

    async def _wait(self, trans: Trans) -> None:
        gid = gid_of(trans)
        found = await self._known(gid)
        if found.calls is None:
            return
        # As in dtm, what was delayed is not waited for: the caller is told that it has not happened yet.
        seconds = 0.0 if delay_of(trans) else patience(found.calls, timeout_of(trans))
        judge(await self._first_pass(gid, seconds))

    async def _first_pass(self, gid: str, seconds: float) -> CallsView:
        """The calls after one pass, or when the time is up. The broker answers a wait only when all was tried, so that
        a host that is given up meanwhile is found by short waits."""
        loop = asyncio.get_running_loop()
        deadline, longest = loop.time() + seconds, FIRST_LOOK_SECONDS
        while True:
            left = max(0.0, deadline - loop.time())
            view = await _told(self._door.wait_for_calls(gid, min(left, longest)))
            if left <= longest or pass_over(view):
                return view
            longest = LOOK_SECONDS

    async def abort(self, trans: Trans) -> None:
        check_type(trans.trans_type)
        gid = gid_of(trans)
        found = await self._known(gid)
        if status_of(found) != "prepared":
            raise errors.cannot_abort(status_of(found))
        result = await self._batch([Rollback(gid)])
        if result.error or result.duplicate:
            raise errors.cannot_abort(status_of(await self._known(gid)))

    async def force_stop(self, gid: str | None) -> None:
        """Nothing more is done for an unfinished transaction."""
        gid = checked_gid(gid)
        for _ in range(TRIES):
            found = await self._known(gid)
            if finished(found):
                raise errors.cannot_stop(status_of(found))
            try:
                if status_of(found) == "prepared":
                    await self._door.resolve(gid, "rolled_back")
                else:
                    await self._door.stop_calls(gid)
                return
            except Conflict:
                continue  # submitted or finished since the look
            except TallystickError as error:
                raise refusal_of(error) from error
        raise errors.cannot_stop(status_of(await self._known(gid)))

    async def hurry(self, gid: str | None) -> None:
        """The next check or the next tries are due now. dtm parks nothing, so what is parked here goes on as well."""
        gid = checked_gid(gid)
        found = await self._known(gid)
        if found.transaction.state == "parked":
            await _told(self._door.resume(gid))
        elif found.calls is not None and any(call.state == "parked" for call in found.calls.calls):
            await _told(self._door.resume_calls(gid))
        if not finished(found):
            await _told(self._door.hurry(gid))

    async def hurry_all(self, after_ms: int, limit: int) -> tuple[int, bool]:
        """How many were hurried, and whether there are more."""
        return await _told(self._door.hurry_all(after_ms, limit))

    def register_branch(self, trans_type: str | None) -> NoReturn:
        """Branches come one by one only in transactions that this broker does not have."""
        if trans_type == "msg":
            raise DtmError("unknow trans type: msg")  # dtm's own words
        raise errors.wrong_type(trans_type)

    async def _known(self, gid: str) -> Whole:
        found = await self._door.whole(gid)
        if found is None:
            raise errors.unknown_gid(gid)
        return found

    # --- topics ----------------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, url: str, remark: str = "") -> None:
        place = url_of(url, "grpc", "url") if url else ""
        await _told(self._door.subscribe(topic, place, remark))

    async def unsubscribe(self, topic: str, url: str) -> None:
        await _told(self._door.unsubscribe(topic, subscriber_url(url)))

    async def delete_topic(self, topic: str) -> None:
        try:
            await self._door.drop_call_topic(topic)
        except NotFound as error:
            raise DtmError("storage: NotFound") from error
        except TallystickError as error:
            raise refusal_of(error) from error

    # --- the broker ------------------------------------------------------------------------------------------------

    async def _batch(self, ops: Sequence[ClientOp], weight: int = WEIGHT) -> OpResult:
        """Carry out; gives the answer to the last operation if it is done or if its refusal is about the state of the
        transaction, and raises everything else."""
        return await _told(self._last(ops, weight))

    async def _last(self, ops: Sequence[ClientOp], weight: int) -> OpResult:
        return await _checked((await self._door.batch(ops, weight))[-1] or _DONE)


async def _checked(result: OpResult) -> OpResult:
    """The result if it is about the state of the transaction; any other refusal is raised."""
    if result.error not in _OF_STATE and (result.field != "gid" or result.error == Forbidden.code):
        raise_refusal(result)
    return result


async def _told(work: Awaitable[T]) -> T:
    """What the door gives; what it refuses, in dtm's words."""
    try:
        return await work
    except TallystickError as error:
        raise refusal_of(error) from error
