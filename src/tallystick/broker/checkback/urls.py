"""Asking a URL, in dtm's manner: GET with the gid; only a clear answer is an answer."""

from __future__ import annotations

import msgspec

from tallystick.broker.outbound import MAX_ANSWER_BYTES, Answered, Outbound, OutboundFailed
from tallystick.core.ops import Answer

RETRIES = 1  # within one check, for errors that a second try a moment later may not meet


class _Body(msgspec.Struct):
    outcome: str | None = None
    dtm_result: str | None = None


_WORDS: dict[tuple[int, str], Answer] = {
    (200, "committed"): "committed",
    (200, "SUCCESS"): "committed",
    (409, "rolled_back"): "rolled_back",
    (409, "FAILURE"): "rolled_back",
}


def understand(answered: Answered) -> Answer:
    """Status and body must say the same. A 200 with an error text is not a commit; nor is anything else unclear."""
    if answered.status == 425:
        return "unknown"
    try:
        body = msgspec.json.decode(answered.body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = _Body()
    if len(answered.body) >= MAX_ANSWER_BYTES:
        body = _Body()  # perhaps cut off: what it would have said in the end is not known
    said = {_WORDS.get((answered.status, word)) for word in (body.outcome, body.dtm_result) if word}
    if len(said) == 1 and None not in said:
        answer = said.pop()
        assert answer is not None  # noqa: S101 - for the type checker
        return answer
    permanent = 300 <= answered.status < 500 and answered.status not in (408, 429)
    text = answered.body[:200].decode(errors="replace")
    raise OutboundFailed(f"status {answered.status} is no clear answer: {text!r}", "unclear", permanent)


async def ask_url(outbound: Outbound, url: str, gid: str, seconds: float) -> Answer:
    params = {"gid": gid, "trans_type": "msg", "branch_id": "00", "op": "msg"}
    for tries in range(RETRIES + 1):
        try:
            return understand(await outbound.get(url, params, seconds))
        except OutboundFailed as error:
            if error.permanent or error.kind != "network" or tries == RETRIES:
                raise
    raise AssertionError("unreachable")
