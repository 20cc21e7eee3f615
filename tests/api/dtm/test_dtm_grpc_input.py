"""What dtm's gRPC service refuses, with which code and words; nothing of it is stored or called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from brokers import BrokerProcess, running_broker
from dtm_grpc import GrpcClient, Refused, request_of
from tallystick.api.dtm.grpc.messages import DtmBranchRequest, DtmRequest
from tallystick.core.limits import MIB

HERE = "127.0.0.1:1/busi.Busi/TransIn"
QUERY = "127.0.0.1:1/busi.Busi/CanSubmit"
STEPS = [(HERE, b"x")]
NO_METHOD = "it is not of the form grpc://host:port/package.Service/Method"
NO_METHODS = ["/", "/x", "//C", "/a.B/", "/a.B/C/D", "/a.B/C?x=1", "/a-B/C"]
NO_METADATA = [{"u": "\u00e9"}, {"grpc-x": "1"}, {"dtm-gid": "x"}, {"Dtm-Op": "x"}, {"t": "a\tb"}, {"a!": "x"}]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(grpc=True, max_message_bytes=MIB) as running:
        yield running


@pytest.fixture
def dtm(broker: BrokerProcess) -> Iterator[GrpcClient]:
    with GrpcClient(broker) as client:
        yield client


def refused_by_both(dtm: GrpcClient, request: Any) -> str:
    """The words with which prepare and submit refuse it, which are the same."""
    told = []
    for method in ("Prepare", "Submit"):
        with pytest.raises(Refused) as refused:
            dtm.call(method, request.SerializeToString())
        assert refused.value.code == "UNKNOWN"
        told.append(refused.value.text)
    assert told[0] == told[1]
    return told[0]


@pytest.mark.parametrize("kind", ["saga", "tcc", "xa", "workflow", "", "MSG"])
def test_other_transaction_types(dtm: GrpcClient, kind: str) -> None:
    words = refused_by_both(dtm, DtmRequest(Gid=f"type-{kind}", TransType=kind, QueryPrepared=QUERY))
    assert words.startswith(f"trans_type: {kind!r} is not supported, only 'msg'")
    assert dtm.status(f"type-{kind}") is None


def test_methods_of_other_transaction_types(dtm: GrpcClient) -> None:
    for method, kind, words in (
        ("RegisterBranch", "tcc", "'tcc' is not supported"),
        ("RegisterBranch", "msg", "unknow trans type: msg"),
        ("PrepareWorkflow", "workflow", "'workflow' is not supported"),
    ):
        made = DtmBranchRequest if method == "RegisterBranch" else DtmRequest
        with pytest.raises(Refused) as refused:
            dtm.call(method, made(Gid="g", TransType=kind).SerializeToString())
        assert (refused.value.code, words in refused.value.text) == ("UNKNOWN", True)


@pytest.mark.parametrize("gid", ["", "a b", "ü", "x" * 300, "a/b", "\n\r;"])
def test_gids_that_are_none(dtm: GrpcClient, gid: str) -> None:
    assert "gid" in refused_by_both(dtm, request_of(gid, STEPS, QUERY))


def test_steps_that_are_no_json(dtm: GrpcClient) -> None:
    given = request_of("bad-steps", STEPS, QUERY)
    given.Steps = '[{"action": '
    assert refused_by_both(dtm, given).startswith("Steps: ")
    assert dtm.status("bad-steps") is None


def test_fewer_payloads_than_steps(dtm: GrpcClient) -> None:
    given = request_of("few", [*STEPS, *STEPS], QUERY)
    del given.BinPayloads[1:]
    with pytest.raises(Refused, match="UNKNOWN: payloads: 1 for 2 steps"):
        dtm.call("Prepare", given.SerializeToString())
    assert dtm.status("few") is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("etcd://127.0.0.1:1/s/m", "call dtmdriver.Use() before you use custom scheme for 'etcd://127.0.0.1:1/s/m'"),
        ("127.0.0.1:1", "bad url: '127.0.0.1:1'. no '/' found"),
        ("10.1.2.3:80/s/m", "steps[0].action: this broker may not call 'grpc://10.1.2.3:80/s/m'"),
        ("http://10.1.2.3/x", "steps[0].action: this broker may not call 'http://10.1.2.3/x'"),
        ("user@127.0.0.1:1/s/m", "steps[0].action: this broker may not call"),
        ("127.0.0.1:1/s/m\r\nx", "steps[0].action"),
        ("topic://nobody-listens", "topic not found"),
        *((f"127.0.0.1:1{path}", NO_METHOD) for path in NO_METHODS),
    ],
)
def test_branches_that_cannot_or_must_not_be_called(dtm: GrpcClient, url: str, words: str) -> None:
    for act, check in ((dtm.prepare, QUERY), (dtm.submit, "")):
        with pytest.raises(Refused) as refused:
            act("bad-url", [(url, b"")], check)
        assert refused.value.code == "UNKNOWN"
        assert words in refused.value.text
    assert dtm.status("bad-url") is None


@pytest.mark.parametrize(
    "url", ["", "etcd://127.0.0.1:1/s/m", "127.0.0.1:1", "10.1.2.3:80/s/m", "topic://t", "127.0.0.1:1/x"]
)
def test_check_backs_that_cannot_or_must_not_be_asked(dtm: GrpcClient, url: str) -> None:
    with pytest.raises(Refused) as refused:
        dtm.prepare("bad-check", STEPS, url)
    assert refused.value.code == "UNKNOWN"
    assert dtm.status("bad-check") is None


@pytest.mark.parametrize(
    "headers", [{"bad name": "x"}, {"x": "a\r\nevil: 1"}, {"": "x"}, {"x": "\x00"}, {f"h{n}": "x" for n in range(65)}]
)
def test_headers_that_would_break_out_of_their_line(dtm: GrpcClient, headers: dict[str, str]) -> None:
    with pytest.raises(Refused, match=r"(?s)UNKNOWN: .*headers"):
        dtm.submit("bad-headers", STEPS, BranchHeaders=headers)
    assert dtm.status("bad-headers") is None


@pytest.mark.parametrize("name", ["TimeoutToFail", "RetryInterval", "RequestTimeout"])
@pytest.mark.parametrize("value", [-1, 2**62])
def test_times_out_of_range(dtm: GrpcClient, name: str, value: int) -> None:
    with pytest.raises(Refused) as refused:
        dtm.submit("bad-time", STEPS, **{name: value})
    assert refused.value.code == "UNKNOWN"
    assert dtm.status("bad-time") is None


@pytest.mark.parametrize("data", ["{", '{"delay": -1}', '{"delay": "soon"}', '{"delay": 1.5}'])
def test_delays_that_are_none(dtm: GrpcClient, data: str) -> None:
    with pytest.raises(Refused, match="UNKNOWN: custom_data"):
        dtm.submit("bad-delay", STEPS, custom_data=data)
    assert dtm.status("bad-delay") is None


def test_a_payload_over_the_limit(dtm: GrpcClient) -> None:
    with pytest.raises(Refused, match=rf"UNKNOWN: payloads\[0\]: {MIB + 1} bytes, the limit is {MIB}"):
        dtm.submit("too-large", [(HERE, bytes(MIB + 1))])
    assert dtm.status("too-large") is None


@pytest.mark.parametrize("headers", NO_METADATA, ids=repr)
def test_headers_that_grpc_cannot_carry(dtm: GrpcClient, headers: dict[str, str]) -> None:
    """Where they are for a branch or a check-back over gRPC, also one that a topic leads to; HTTP carries most."""
    topic, url = "headers-grpc", "http://127.0.0.1:1/x"
    if topic not in {one["k"] for one in dtm.get("queryKV", cat="topics", key=topic)["kv"]}:
        dtm.subscribe(topic, HERE)
    for step, check in ((HERE, url), (url, QUERY), (f"topic://{topic}", url)):
        given = request_of("bad-headers", [(step, b"{}")], check)
        given.TransOptions.BranchHeaders.update(headers)
        with pytest.raises(Refused) as refused:
            dtm.call("Prepare", given.SerializeToString())
        assert refused.value.code == "UNKNOWN"
        assert "headers: " in refused.value.text, refused.value.text
        assert next(iter(headers)) in refused.value.text
    assert dtm.status("bad-headers") is None


@pytest.mark.parametrize("path", NO_METHODS)
def test_a_topic_takes_no_url_that_is_no_method(dtm: GrpcClient, path: str) -> None:
    with pytest.raises(Refused, match=NO_METHOD):
        dtm.subscribe("no-methods", f"127.0.0.1:1{path}")


@pytest.mark.parametrize("headers", NO_METADATA[1:3], ids=repr)
def test_over_http_such_headers_are_sent(dtm: GrpcClient, headers: dict[str, str]) -> None:
    given = request_of(f"http-headers-{next(iter(headers))}", [("http://127.0.0.1:1/x", b"{}")], "http://127.0.0.1:1/x")
    given.TransOptions.BranchHeaders.update(headers)
    dtm.call("Prepare", given.SerializeToString())
