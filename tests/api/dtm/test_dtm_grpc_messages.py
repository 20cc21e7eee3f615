"""dtm's gRPC messages: the numbers on the wire, and what the shared translation makes of them."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from dtm_grpc import request_of
from tallystick.api.dtm import grpc as dtm_grpc_package
from tallystick.api.dtm.errors import DtmError, DtmFailure, DtmOngoing, refusal_of
from tallystick.api.dtm.grpc import messages
from tallystick.api.dtm.grpc.service import code_of, trans_of
from tallystick.api.dtm.translate import calls_of, check_of, prepare_op
from tallystick.core.errors import Busy, InvalidRequest

PLACE = Path(str(files(dtm_grpc_package)))


def test_the_descriptors_are_made_from_the_proto_file(tmp_path: Path) -> None:
    made = tmp_path / "made.binpb"
    flags = ["protoc", f"--proto_path={PLACE}", "--include_imports", f"--descriptor_set_out={made}", "dtm.proto"]
    wellknown = str(files("grpc_tools").joinpath("_proto"))
    assert protoc.main([*flags, f"--proto_path={wellknown}"]) == 0
    kept, new = (FileDescriptorSet.FromString(one.read_bytes()) for one in (PLACE / "dtm.binpb", made))
    assert kept == new, "dtm.proto has changed: run scripts/protos"


def wire(number: int, content: bytes) -> bytes:
    """A field with a length, as protobuf writes it."""
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def test_fields_have_the_numbers_that_dtms_clients_send() -> None:
    header = wire(5, wire(1, b"name") + wire(2, b"value"))
    options = b"\x08\x01" + b"\x10\x23" + b"\x18\x0a" + header + b"\x30\x03" + b"\x38\x05"
    sent = wire(1, b"g") + wire(2, b"msg") + wire(3, options) + wire(4, b"{}") + wire(5, b"\x00\xff") + wire(5, b"")
    sent += wire(6, b"h:1/s/q") + wire(7, b"[]") + wire(8, wire(1, b"k") + wire(2, b"v")) + wire(9, b"why")
    read = messages.DtmRequest.FromString(sent)
    assert (read.Gid, read.TransType, read.CustomedData) == ("g", "msg", "{}")
    assert (list(read.BinPayloads), read.QueryPrepared, read.Steps) == ([b"\x00\xff", b""], "h:1/s/q", "[]")
    assert (dict(read.ReqExtra), read.RollbackReason) == ({"k": "v"}, "why")
    told = read.TransOptions
    assert (told.WaitResult, told.TimeoutToFail, told.RetryInterval) == (True, 35, 10)
    assert (dict(told.BranchHeaders), told.RequestTimeout, told.RetryLimit) == ({"name": "value"}, 3, 5)
    topic = messages.DtmTopicRequest.FromString(wire(1, b"t") + wire(2, b"u") + wire(3, b"r"))
    assert (topic.Topic, topic.URL, topic.Remark) == ("t", "u", "r")
    assert messages.DtmGidReply(Gid="g").SerializeToString() == wire(1, b"g")


def test_the_service_has_dtms_methods() -> None:
    found = {one.name: (one.input_type.name, one.output_type.name) for one in messages.SERVICE.methods}
    assert messages.SERVICE.full_name == "dtmgimp.Dtm"
    assert found == {
        "NewGid": ("Empty", "DtmGidReply"),
        "Submit": ("DtmRequest", "Empty"),
        "Prepare": ("DtmRequest", "Empty"),
        "Abort": ("DtmRequest", "Empty"),
        "RegisterBranch": ("DtmBranchRequest", "Empty"),
        "PrepareWorkflow": ("DtmRequest", "DtmProgressesReply"),
        "Subscribe": ("DtmTopicRequest", "Empty"),
        "Unsubscribe": ("DtmTopicRequest", "Empty"),
        "DeleteTopic": ("DtmTopicRequest", "Empty"),
    }


def test_a_request_becomes_calls_with_their_bytes_headers_and_times() -> None:
    steps = [("h:1/busi.Busi/Out", b"\x00\xff"), ("http://h:2/in", b"raw"), ("topic://t", b"")]
    headers = {"authorization": "x"}
    given = request_of("g", steps, "h:1/busi.Busi/Q", '{"delay": 7}', BranchHeaders=headers, RequestTimeout=9)
    calls = calls_of(trans_of(given))
    assert [(one.url, one.body) for one in calls] == [
        ("grpc://h:1/busi.Busi/Out", b"\x00\xff"),
        ("http://h:2/in", b"raw"),
        ("topic://t", b""),
    ]
    assert {one.protocol for one in calls} == {"grpc"}  # what the transaction asks for; the URL decides
    assert [one.branch for one in calls] == ["01", "02", "03"]
    assert {(one.timeout_ms, one.delay_ms) for one in calls} == {(9_000, 7_000)}
    assert all(one.headers == headers for one in calls)


def test_options_become_the_check_and_the_retries() -> None:
    given = request_of("g", [("h:1/s/m", b"")], "h:1/s/q", TimeoutToFail=3, RetryInterval=4, RequestTimeout=5)
    op = prepare_op(trans_of(given))
    assert (op.check.via, op.check.target, op.check.after_ms) == ("url", "grpc://h:1/s/q", 3_000)
    assert op.check.timeout_ms == 5_000
    assert op.call_options is not None
    assert (op.call_options.retry_ms, op.call_options.concurrent) == (4_000, False)


def test_without_options_the_times_are_dtms() -> None:
    given = messages.DtmRequest(Gid="g", TransType="msg", Steps='[{"action":"h:1/s/m"}]', BinPayloads=[b"x"])
    (call,) = calls_of(trans_of(given))
    given.QueryPrepared = "https://h/q"
    check = check_of(trans_of(given))
    assert (call.timeout_ms, check.after_ms, check.target) == (3_000, 35_000, "https://h/q")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("etcd://h:1/s/m", "call dtmdriver.Use() before you use custom scheme for 'etcd://h:1/s/m'"),
        ("h:1", "bad url: 'h:1'. no '/' found"),
    ],
)
def test_addresses_that_dtm_cannot_call_are_refused_in_its_words(url: str, words: str) -> None:
    with pytest.raises(DtmError) as branch:
        calls_of(trans_of(request_of("g", [(url, b"")])))
    with pytest.raises(DtmError) as check:
        check_of(trans_of(request_of("g", [], url)))
    assert words in branch.value.message
    assert words in check.value.message


@pytest.mark.parametrize("steps", ["[", "{}", '"x"', "[1]", '[{"action": 1}]', '{"a": ' * 2_000])
def test_steps_that_are_not_a_list_of_actions_are_refused(steps: str) -> None:
    with pytest.raises(DtmError, match=r"(?i)steps"):
        trans_of(messages.DtmRequest(Gid="g", TransType="msg", Steps=steps))


def test_fewer_payloads_than_steps_are_refused() -> None:
    given = messages.DtmRequest(Gid="g", TransType="msg", Steps=json.dumps([{"action": "h:1/s/m"}] * 2))
    given.BinPayloads.append(b"only one")
    with pytest.raises(DtmError, match="payloads: 1 for 2 steps"):
        calls_of(trans_of(given))


@pytest.mark.parametrize("name", ["TimeoutToFail", "RetryInterval", "RequestTimeout"])
def test_times_below_zero_are_refused(name: str) -> None:
    with pytest.raises(DtmError, match=r">= 0"):
        trans_of(request_of("g", [], **{name: -1}))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DtmFailure("x"), grpc.StatusCode.ABORTED),
        (DtmOngoing("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (DtmError("x"), grpc.StatusCode.UNKNOWN),
        (InvalidRequest("x"), grpc.StatusCode.UNKNOWN),
        (Busy(), grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_each_kind_of_refusal_has_its_code(error: Any, code: grpc.StatusCode) -> None:
    assert code_of(refusal_of(error)) is code
