"""Checks by URL, in dtm's manner: GET with the gid, or a gRPC call with it.

Native transactions accept clear answers only. Those prepared through dtm's interfaces follow dtm's rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from tallystick.broker.outbound.answer import Answered, GrpcAnswer, OutboundFailed, encoded, too_long, unsendable
from tallystick.broker.outbound.dtm_rule import check_result
from tallystick.broker.outbound.headers import grpc_marks, joined, marks, metadata_of
from tallystick.broker.outbound.outbound import Outbound
from tallystick.core.ops import Answer
from tallystick.core.wire import SOURCE_HEADER

RETRIES = 1  # within one check, for errors that a second try a moment later may not meet
BRANCH, OP = "00", "msg"


class _Body(msgspec.Struct):
    outcome: str | None = None
    dtm_result: str | None = None


_WORDS: dict[tuple[int, str], Answer] = {
    (200, "committed"): "committed",
    (200, "SUCCESS"): "committed",
    (409, "rolled_back"): "rolled_back",
    (409, "FAILURE"): "rolled_back",
}
_OF_DTM: dict[str, Answer] = {"success": "committed", "failure": "rolled_back", "ongoing": "unknown"}
# Codes with which a service says that it will never have an answer: wrong method, wrong request, no right to ask.
_PERMANENT_CODES = ("UNIMPLEMENTED", "INVALID_ARGUMENT", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED")
_CODE_KINDS = {"UNAVAILABLE": "network", "DEADLINE_EXCEEDED": "timeout"}


def understand(answered: Answered) -> Answer:
    """Status and body must say the same. A 200 with an error text is not a commit; nor is anything else unclear."""
    if answered.status == 425:
        return "unknown"
    try:
        body = msgspec.json.decode(answered.body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = _Body()
    if answered.cut or answered.coding:
        body = _Body()  # what it would have said in the end is not known
    said = {_WORDS.get((answered.status, word)) for word in (body.outcome, body.dtm_result) if word}
    if len(said) == 1 and None not in said:
        answer = said.pop()
        assert answer is not None  # noqa: S101 - for the type checker
        return answer
    raise _unclear(answered)


def understand_by_dtm(answered: Answered) -> Answer:
    """dtm's rule: ONGOING, then FAILURE, in the status or anywhere in the body; any other 200 is a commit. A success
    whose body was cut is not one, because the rest may hold either word."""
    result = check_result(answered)
    if result == "error" or (result == "success" and answered.cut):
        raise _unclear(answered)
    return _OF_DTM[result]


def _unclear(answered: Answered) -> OutboundFailed:
    if answered.coding:
        return OutboundFailed(encoded(answered), "unclear", permanent=False)
    if answered.cut and answered.status == 200:
        return OutboundFailed(too_long(answered), "unclear", permanent=False)
    permanent = 300 <= answered.status < 500 and answered.status not in (408, 429)
    text = answered.body[:200].decode(errors="replace")
    return OutboundFailed(f"status {answered.status} is no clear answer: {text!r}", "unclear", permanent)


def understand_grpc(answer: GrpcAnswer) -> Answer:
    """Over gRPC there is nothing but the status: OK is as clear as it gets."""
    if answer.code == "OK":
        return "committed"
    if answer.code == "ABORTED":
        return "unknown" if answer.details == "ONGOING" else "rolled_back"
    if answer.code == "FAILED_PRECONDITION":
        return "unknown"
    kind = _CODE_KINDS.get(answer.code, "unclear")
    reason = f"{answer.code} is no clear answer: {answer.details[:200]!r}"
    raise OutboundFailed(reason, kind, permanent=answer.code in _PERMANENT_CODES)


async def ask_url(
    outbound: Outbound,
    url: str,
    gid: str,
    seconds: float,
    headers: Mapping[str, str] | None = None,
    source: str = "",
    dtm: bool = False,
) -> Answer:
    """The answer to a check; `dtm`: by dtm's rule. Raises OutboundFailed where there is none."""
    if source:
        headers = {SOURCE_HEADER: quote(source, safe="/:#"), **(headers or {})}
    for tries in range(RETRIES + 1):
        try:
            return await _ask_once(outbound, url, gid, seconds, headers, dtm)
        except OutboundFailed as error:
            if error.permanent or error.kind != "network" or tries == RETRIES:
                raise
    raise AssertionError("unreachable")


async def _ask_once(
    outbound: Outbound, url: str, gid: str, seconds: float, headers: Mapping[str, str] | None, dtm: bool
) -> Answer:
    try:
        if url.startswith("grpc://"):
            metadata = [*grpc_marks(gid, BRANCH, OP), *metadata_of(headers)]
            return understand_grpc(await outbound.grpc(url, metadata, b"", seconds))
        sent = joined({"Content-Type": "application/json"}, headers)
        answered = await outbound.get(url, marks(gid, BRANCH, OP), seconds, sent)
        return understand_by_dtm(answered) if dtm else understand(answered)
    except ValueError as error:  # headers that cannot be sent
        raise unsendable(str(error)) from error
