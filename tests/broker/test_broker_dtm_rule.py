"""dtm's rule for answers: what its `HTTPResp2DtmError` makes of a status and a body, in its order."""

from __future__ import annotations

import pytest

from tallystick.broker.calls.verdicts import of_http_by_dtm, of_json_rpc_by_dtm
from tallystick.broker.checkback.urls import understand_by_dtm
from tallystick.broker.outbound.answer import MAX_ANSWER_BYTES, Answered, OutboundFailed

ANSWERS: list[tuple[int, bytes, str]] = [
    (200, b"null", "success"),  # `Result2HttpJSON(nil)`
    (200, b"", "success"),
    (200, b'{"dtm_result":"SUCCESS"}', "success"),
    (200, b"<html>Please log in</html>", "success"),
    (200, b'{"jsonrpc":"2.0","id":"1","error":null}', "success"),
    (409, b'{"error":"FAILURE"}', "failure"),  # `Result2HttpJSON(ErrFailure)`
    (409, b"", "failure"),
    (200, b'{"dtm_result":"FAILURE"}', "failure"),
    (200, b"text with FAILURE in it", "failure"),
    (500, b'{"error":"reason: FAILURE"}', "failure"),
    (425, b'{"error":"ONGOING"}', "ongoing"),  # `Result2HttpJSON(ErrOngoing)`
    (425, b"", "ongoing"),
    (200, b'{"dtm_result":"ONGOING"}', "ongoing"),
    (500, b"ONGOING", "ongoing"),
    (409, b"ONGOING", "ongoing"),
    (425, b"FAILURE", "ongoing"),
    (200, b"FAILURE and ONGOING", "ongoing"),
    (201, b"", "error"),
    (204, b"", "error"),
    (302, b"", "error"),
    (404, b"not found", "error"),
    (500, b'{"error":"no database"}', "error"),
    (500, b'{"dtm_result":"SUCCESS"}', "error"),
]
CHECKED = {"success": "committed", "failure": "rolled_back", "ongoing": "unknown"}


@pytest.mark.parametrize(("status", "body", "result"), ANSWERS, ids=lambda value: repr(value)[:30])
def test_a_branch_and_a_check_back(status: int, body: bytes, result: str) -> None:
    answered = Answered(status, body)
    assert of_http_by_dtm(answered).outcome == result
    if result != "error":
        assert understand_by_dtm(answered) == CHECKED[result]
        return
    with pytest.raises(OutboundFailed) as failed:
        understand_by_dtm(answered)
    assert failed.value.kind == "unclear"
    assert f"status {status}" in str(failed.value)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateway_that_reaches_nobody_says_nothing_about_the_service(status: int) -> None:
    verdict = of_http_by_dtm(Answered(status, b""))
    assert (verdict.outcome, verdict.reached) == ("unreachable", False)


@pytest.mark.parametrize(
    ("status", "body", "result"),
    [
        (200, b'{"dtm_result":"SUCCESS"}', "success"),  # no envelope
        (200, b"{}", "success"),
        (200, b"null", "success"),
        (200, b'{"jsonrpc":"2.0","id":"1","result":{}}', "success"),
        (200, b'{"error":null}', "success"),
        (200, b'{"jsonrpc":"2.0","error":{"code":-32901,"message":"no"}}', "failure"),
        (200, b'{"jsonrpc":"2.0","error":{"code":-32902,"message":"no"}}', "ongoing"),
        (200, b'{"error":{"code":-32603,"message":"oops"}}', "error"),
        (200, b'{"error":"oops"}', "error"),
        (200, b"", "error"),
        (200, b"[]", "error"),
        (200, b"<html>", "error"),
        (409, b"", "failure"),
        (425, b"", "ongoing"),
        (500, b"{}", "error"),
    ],
)
def test_a_branch_by_json_rpc(status: int, body: bytes, result: str) -> None:
    assert of_json_rpc_by_dtm(Answered(status, body)).outcome == result


BAD_ERRORS = [b'"no database"', b'""', b"7", b"0", b"true", b"false", b"[]", b"[-32901]", b"{}", b'{"code":"x"}']
BAD_ERRORS += [b'{"code":null}', b'{"code":true}', b'{"code":[1]}', b'{"message":"no"}', b'{"code":1e400}']
BAD_ERRORS += [b'"\\ud800"', b"[" * 5_000 + b"]" * 5_000]


@pytest.mark.parametrize("error", BAD_ERRORS, ids=lambda value: repr(value)[:30])
def test_an_error_that_is_not_understood_is_an_error(error: bytes) -> None:
    for version in (b'"2.0"', b"2.0", b"null"):
        answered = Answered(200, b'{"jsonrpc":%b,"id":"1","error":%b}' % (version, error))
        assert of_json_rpc_by_dtm(answered).outcome == "error"
        with pytest.raises(OutboundFailed, match="no clear answer"):
            understand_by_dtm(answered)


@pytest.mark.parametrize("error", [b'{"code":-32901,"message":"no"}', b'"no database"'])
def test_without_jsonrpc_an_object_is_no_envelope_to_a_check_back(error: bytes) -> None:
    """As in dtm, whose check-back reads statuses and words only."""
    assert understand_by_dtm(Answered(200, b'{"error":%b}' % error)) == "committed"


@pytest.mark.parametrize(("code", "answer"), [(-32901, "rolled_back"), (-32902, "unknown"), (-32000, None)])
def test_a_check_back_in_an_envelope(code: int, answer: str | None) -> None:
    answered = Answered(200, b'{"jsonrpc":"2.0","id":"1","error":{"code":%d,"message":"no"}}' % code)
    if answer is not None:
        assert understand_by_dtm(answered) == answer
        return
    with pytest.raises(OutboundFailed):
        understand_by_dtm(answered)


def test_a_success_that_was_cut_off_is_none() -> None:
    """What was not read may hold a word that changes the answer."""
    cut = b"x" * MAX_ANSWER_BYTES
    reason = "the answer was cut at the limit of 65536 bytes"
    with pytest.raises(OutboundFailed, match=reason):
        understand_by_dtm(Answered(200, cut))
    assert understand_by_dtm(Answered(200, b"FAILURE" + cut)) == "rolled_back"
    for judge in (of_http_by_dtm, of_json_rpc_by_dtm):
        verdict = judge(Answered(200, b'{"a":"' + cut))
        assert (verdict.outcome, verdict.reached) == ("error", True)
        assert reason in verdict.error
        assert judge(Answered(200, b"FAILURE" + cut)).outcome == "failure"
        assert judge(Answered(409, cut)).outcome == "failure"
        assert judge(Answered(425, cut)).outcome == "ongoing"
        assert judge(Answered(503, cut)).outcome == "unreachable"
        assert reason not in judge(Answered(500, cut)).error
    assert of_http_by_dtm(Answered(200, cut[1:])).outcome == "success"
