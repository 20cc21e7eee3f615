"""What an answer means for a call: status first, and every status there is."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.broker.calls.verdicts import of_failure, of_grpc, of_http, of_json_rpc
from tallystick.broker.outbound.answer import MAX_ANSWER_BYTES, Answered, GrpcAnswer, OutboundFailed

SUCCESSES = [200, 201, 202, 203, 204, 205, 206, 207, 226, 299]
GATEWAYS = [502, 503, 504]
ERRORS = [
    *(300, 301, 302, 303, 304, 307, 308),
    *(400, 401, 403, 404, 405, 408, 410, 412, 413, 418, 422, 423, 424, 426, 428, 429, 431, 451),
    *(500, 501, 505, 507, 508, 511, 599),
]
WORDLESS = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"ok",
    b"SUCCESS",
    b'"SUCCESS"',
    b'{"dtm_result": "SUCCESS"}',
    b'{"dtm_result": null}',
    b'{"dtm_result": 7}',
    b'{"dtm_result": "failure"}',
    b'{"message": "FAILURE"}',
    b'{"inner": {"dtm_result": "FAILURE"}}',
    b"this is no FAILURE at all",
    b"FAILURE FAILURE",
    b"<html>ONGOING</html>",
    b"\xff\xfe\x00",
    b'{"dtm_result": "FAILURE"',
    b"[" * 20_000,
]
WORDS = [
    (b"FAILURE", "failure"),
    (b" FAILURE\r\n", "failure"),
    (b'"FAILURE"', "failure"),
    (b'{"dtm_result": "FAILURE"}', "failure"),
    (b'{"dtm_result":"FAILURE","message":"no stock"}', "failure"),
    (b"ONGOING", "ongoing"),
    (b'"ONGOING"', "ongoing"),
    (b'{"message": "wait", "dtm_result": "ONGOING"}', "ongoing"),
]
BODIES = [*WORDLESS, *(body for body, _ in WORDS)]


@pytest.mark.parametrize("status", SUCCESSES)
def test_a_2xx_is_a_success_unless_the_body_says_otherwise(status: int) -> None:
    for body in WORDLESS:
        assert of_http(Answered(status, body)).outcome == "success", body
    for body, outcome in WORDS:
        assert of_http(Answered(status, body)).outcome == outcome, body


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [([409], "failure"), ([425], "ongoing"), (GATEWAYS, "unreachable"), (ERRORS, "error")],
)
def test_of_every_other_status_the_body_changes_nothing(statuses: list[int], outcome: str) -> None:
    for status in statuses:
        for body in BODIES:
            verdict = of_http(Answered(status, body))
            assert verdict.outcome == outcome, (status, body)
            assert verdict.error.startswith(f"status {status}")
            assert verdict.reached is (outcome != "unreachable")


@given(status=st.integers(100, 599), body=st.binary(max_size=40))
def test_whatever_comes_is_one_of_the_outcomes_and_only_a_2xx_is_a_success(status: int, body: bytes) -> None:
    verdict = of_http(Answered(status, body))
    assert verdict.outcome in ("success", "failure", "ongoing", "error", "unreachable")
    if verdict.outcome == "success":
        assert 200 <= status < 300
        assert verdict.error == ""


def test_an_error_shows_the_beginning_of_the_body_in_one_line() -> None:
    verdict = of_http(Answered(500, b"Traceback\n  in x\r\n" + b"y" * 5_000))
    assert verdict.error.startswith("status 500: Traceback in x y")
    assert len(verdict.error) == len("status 500: ") + 200
    assert of_http(Answered(404, b"")).error == "status 404"


def test_an_answer_that_was_cut_off_is_judged_by_what_arrived() -> None:
    rest = b'"message": "' + b"x" * MAX_ANSWER_BYTES
    for begin, outcome in (
        (b'{"dtm_result":"FAILURE",', "failure"),
        (b'{"dtm_result" : "ONGOING",', "ongoing"),
        (b"{", "success"),
    ):
        body = (begin + rest)[:MAX_ANSWER_BYTES]
        assert of_http(Answered(200, body)).outcome == outcome


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, b'{"jsonrpc":"2.0","id":"g/01","result":null}', "success"),
        (200, b'{"jsonrpc":"2.0","id":"g/01","result":{"dtm_result":"SUCCESS"},"error":null}', "success"),
        (200, b'{"jsonrpc":"2.0","error":{"code":-32901,"message":"FAILURE"}}', "failure"),
        (200, b'{"jsonrpc":"2.0","error":{"code":-32901.0,"message":"FAILURE"}}', "failure"),
        (200, b'{"jsonrpc":"2.0","error":{"code":-32902,"message":"ONGOING"}}', "ongoing"),
        (200, b'{"jsonrpc":"2.0","error":{"code":-32603,"message":"oops"}}', "error"),
        (200, b'{"jsonrpc":"2.0","error":{}}', "error"),
        (200, b'{"result":null}', "error"),
        (200, b"", "error"),
        (200, b"<html>", "error"),
        (200, b"SUCCESS", "error"),
        (409, b'{"jsonrpc":"2.0","result":null}', "failure"),
        (425, b"", "ongoing"),
        (503, b"", "unreachable"),
        (500, b'{"jsonrpc":"2.0","result":null}', "error"),
        (302, b'{"jsonrpc":"2.0","result":null}', "error"),
    ],
)
def test_a_json_rpc_answer(status: int, body: bytes, outcome: str) -> None:
    assert of_json_rpc(Answered(status, body)).outcome == outcome


GRPC = {
    grpc.StatusCode.OK: "success",
    grpc.StatusCode.ABORTED: "failure",
    grpc.StatusCode.FAILED_PRECONDITION: "ongoing",
    grpc.StatusCode.UNAVAILABLE: "unreachable",
    grpc.StatusCode.DEADLINE_EXCEEDED: "unreachable",
}


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_grpc_status(code: grpc.StatusCode) -> None:
    verdict = of_grpc(GrpcAnswer(code.name, "some words"))
    assert verdict.outcome == GRPC.get(code, "error")
    assert verdict.error == ("" if code is grpc.StatusCode.OK else f"{code.name}: some words")


def test_aborted_with_the_old_word_for_ongoing() -> None:
    assert of_grpc(GrpcAnswer("ABORTED", "ONGOING")).outcome == "ongoing"
    assert of_grpc(GrpcAnswer("ABORTED", "ONGOING ")).outcome == "failure"
    assert of_grpc(GrpcAnswer("UNKNOWN", "ONGOING")).outcome == "error"


@pytest.mark.parametrize(
    ("kind", "outcome", "reached"),
    [
        ("network", "unreachable", False),
        ("timeout", "unreachable", False),
        ("protocol", "error", True),
        ("not_allowed", "error", False),
        ("invalid", "error", False),
    ],
)
def test_no_answer(kind: str, outcome: str, reached: bool) -> None:
    verdict = of_failure(OutboundFailed("why", kind, permanent=False))
    assert (verdict.outcome, verdict.error, verdict.reached) == (outcome, "why", reached)
