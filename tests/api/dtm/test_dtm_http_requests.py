"""What a request may look like: null, unknown and wrong fields, other kinds of transaction, sizes, addresses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dtm_faces import BASE, SHORT, Face, HttpFace, Looker, msg, new_name

from brokers import running_broker
from busi import Busi
from raw_client import RawClient

MIB = 1024 * 1024


def _refused(look: Looker, name: str, content: Any) -> str:
    """A 500 with a message and nothing else; the message."""
    answer = look.post(name, content)
    assert answer.status == 500, (answer.status, answer.body)
    found = answer.json()
    assert set(found) == {"message"}
    assert found["message"]
    assert not any(word in found["message"] for word in ("Traceback", "internal error"))
    return str(found["message"])


def test_the_body_that_the_python_client_sends_is_taken_with_its_nulls(
    http: HttpFace, look: Looker, busi: Busi
) -> None:
    gid = new_name("python")
    trans = {
        "gid": gid,
        "trans_type": "msg",
        "custom_data": None,
        "steps": [{"action": f"{busi.url}/TransIn"}],
        "payloads": ['{"amount": 30}'],
        "query_prepared": None,
        "protocol": None,
        "wait_result": False,
        "timeout_to_fail": 0,
        "request_timeout": 8,
        "retry_interval": 0,
        "passthrough_headers": [],
        "branch_headers": {},
        "concurrent": False,
    }
    assert http.submit(trans).ok
    look.wait(gid, "succeed")
    (called,) = busi.calls(gid)
    assert (called.method, called.body, called.headers["content-type"]) == (
        "POST",
        b'{"amount": 30}',
        "application/json",
    )
    assert called.fields == {"gid": gid, "trans_type": "msg", "branch_id": "01", "op": "action"}


def test_null_is_as_good_as_nothing_everywhere(http: HttpFace, look: Looker) -> None:
    gid = new_name("nulls")
    names = ["steps", "payloads", "query_prepared", "custom_data", "protocol", "wait_result", "timeout_to_fail"]
    names += ["retry_interval", "request_timeout", "branch_headers", "concurrent", "retry_limit", "req_extra"]
    assert http.submit({"gid": gid, "trans_type": "msg", **dict.fromkeys(names)}).ok
    assert look.query(gid)["transaction"]["status"] == "succeed"
    assert look.branches(gid) == {}


def test_steps_with_data_of_their_own_as_old_clients_send_them(http: HttpFace, look: Looker, busi: Busi) -> None:
    gid = new_name("legacy")
    steps = [
        {"action": f"{busi.url}/a", "data": '{"from":"data"}'},
        {"action": f"{busi.url}/b", "data": '{"second":1}'},
    ]
    assert http.submit(msg(gid, busi) | {"steps": steps, "payloads": None}).ok
    look.wait(gid, "succeed")
    assert [call.body for call in busi.calls(gid)] == [b'{"from":"data"}', b'{"second":1}']


def test_a_step_without_a_url_is_done_and_the_others_keep_their_numbers(
    http: HttpFace, look: Looker, busi: Busi
) -> None:
    gid = new_name("no-url")
    steps = [{"action": ""}, None, {"action": f"{busi.url}/c"}]
    assert http.submit(msg(gid, busi) | {"steps": steps, "payloads": ["", "", "{}"]}).ok
    look.wait(gid, "succeed")
    assert [(call.branch, call.path) for call in busi.calls(gid)] == [("03", "/c")]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "trans_type"),
        (b"nothing", "cannot be decoded"),
        (b'{"gid": "x"', "cannot be decoded"),
        (b"\xff\xfe\x00", "cannot be decoded"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b"[" * 100_000, ""),
        (b'{"gid": 7, "trans_type": "msg"}', "gid: "),
        (b'{"gid": "x", "trans_type": ["msg"]}', "trans_type: "),
        (b'{"gid": "x", "trans_type": "msg", "steps": {}}', "steps: "),
        (b'{"gid": "x", "trans_type": "msg", "steps": ["http://a"]}', "steps[0]: "),
        (b'{"gid": "x", "trans_type": "msg", "payloads": [{}]}', "payloads[0]: "),
        (b'{"gid": "x", "trans_type": "msg", "wait_result": "yes"}', "wait_result: "),
        (b'{"gid": "x", "trans_type": "msg", "timeout_to_fail": -1}', "timeout_to_fail: "),
        (b'{"gid": "x", "trans_type": "msg", "timeout_to_fail": 1.5}', "timeout_to_fail: "),
        (b'{"gid": "x", "trans_type": "msg", "retry_interval": 99999999999999999999}', "retry_interval: "),
        (b'{"gid": "x", "trans_type": "msg", "branch_headers": ["a"]}', "branch_headers: "),
        (b'{"gid": "x", "trans_type": "msg", "branch_headers": {"a": 1}}', "branch_headers[...]: "),
        (b'{"gid": "x", "trans_type": "msg", "custom_data": "delay=3"}', "custom_data: "),
        (b'{"gid": "x", "trans_type": "msg", "custom_data": "{\\"delay\\": \\"3\\"}"}', "custom_data: "),
        (b'{"gid": "x", "trans_type": "msg", "custom_data": "{\\"delay\\": -3}"}', "custom_data: "),
        (b'{"trans_type": "msg"}', "gid: "),
        (b'{"gid": "", "trans_type": "msg"}', "gid: "),
        (b'{"gid": "a b", "trans_type": "msg"}', "gid "),
        (
            b'{"gid": "x", "trans_type": "msg", "steps": [{"action": "http://127.0.0.1:1/a"}]}',
            "payloads: 0 for 1 steps",
        ),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong_and_where(look: Looker, body: bytes, said: str) -> None:
    answer = look.client.request("POST", f"{BASE}/submit", body)
    assert answer.status == 500
    assert said in answer.json()["message"]
    assert "Traceback" not in answer.json()["message"]


@pytest.mark.parametrize("name", ["prepare", "submit", "abort"])
@pytest.mark.parametrize("kind", ["saga", "tcc", "xa", "workflow", "", None, "MSG"])
def test_other_kinds_of_transaction_are_refused_with_a_sentence(look: Looker, name: str, kind: str | None) -> None:
    message = _refused(look, name, {"gid": new_name("kind"), "trans_type": kind})
    assert message.startswith(f"trans_type: {kind or ''!r} is not supported, only 'msg' (two-phase messages) is")


@pytest.mark.parametrize("name", ["registerBranch", "registerXaBranch", "registerTccBranch", "prepareWorkflow"])
def test_branches_that_come_one_by_one_are_refused(look: Looker, name: str) -> None:
    assert _refused(look, name, {"trans_type": "msg"}) == "unknow trans type: msg"
    assert "'tcc' is not supported" in _refused(look, name, {"trans_type": "tcc"})


def test_a_gid_loses_what_dtm_takes_out_of_it(http: HttpFace, look: Looker) -> None:
    gid = new_name("stripped")
    assert http.submit({"gid": f"{gid};\r\n", "trans_type": "msg"}).ok
    assert look.status(gid) == "succeed"


# --- sizes -------------------------------------------------------------------------------------------------------


def test_a_branch_without_a_payload_is_called_by_get(http: HttpFace, look: Looker, busi: Busi) -> None:
    gid = new_name("empty")
    assert http.submit(msg(gid, busi, "/TransIn") | {"payloads": [""]}).ok
    look.wait(gid, "succeed")
    assert [(call.method, call.body) for call in busi.calls(gid)] == [("GET", b"")]


def test_a_payload_of_a_mebibyte_arrives_as_it_is(http: HttpFace, look: Looker, busi: Busi) -> None:
    gid, text = new_name("large"), json.dumps("ä" * (MIB // 2 - 1), ensure_ascii=False)
    assert http.submit(msg(gid, busi, "/TransIn") | {"payloads": [text]}).ok
    look.wait(gid, "succeed")
    assert [call.body for call in busi.calls(gid)] == [text.encode()]


@pytest.mark.parametrize("name", ["prepare", "submit"])
def test_a_payload_over_the_limit_is_refused(look: Looker, busi: Busi, name: str) -> None:
    gid = new_name("too-large")
    message = _refused(look, name, msg(gid, busi, "/TransIn") | {"payloads": ["x" * (4 * MIB + 1)]})
    assert message == f"payloads[0]: {4 * MIB + 1} bytes, the limit is {4 * MIB}"
    assert look.status(gid) is None


def test_a_request_over_the_limit_is_refused_before_it_is_read(look: Looker) -> None:
    answer = look.client.request("POST", f"{BASE}/submit", b"x" * (16 * MIB + 1))
    assert answer.status == 500
    assert "more than" in answer.json()["message"]


def test_custom_data_and_headers_have_a_limit_together(look: Looker, busi: Busi) -> None:
    custom = json.dumps({"note": "x" * 9_000})
    assert "the limit is 8192" in _refused(look, "prepare", msg(new_name("custom"), busi, custom_data=custom))


def test_too_many_steps_are_refused(look: Looker, busi: Busi) -> None:
    message = _refused(look, "submit", msg(new_name("many"), busi, *["/a"] * 1_001))
    assert message == "steps: 1001 calls, the limit is 1000"


# --- addresses and headers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a",
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1@example.com/",
        "http://2130706433/",
        "ftp://127.0.0.1/a",
        "file:///etc/passwd",
        "127.0.0.1:80/a",
        "no url",
    ],
)
def test_addresses_that_the_operator_has_not_allowed_are_refused_by_name(look: Looker, busi: Busi, url: str) -> None:
    trans = msg(new_name("address"), busi, "/fine", "/fine")
    trans["steps"][1]["action"] = url
    assert _refused(look, "submit", trans).startswith("steps[1].action: ")
    message = _refused(look, "prepare", msg(new_name("address"), busi, query_prepared=url))
    assert message.startswith("query_prepared: ")
    if "://" in url:  # without a scheme it is a gRPC method, which may be subscribed
        assert look.get("subscribe", topic=new_name("t"), url=url).status == 500


def test_what_was_prepared_can_be_submitted_after_the_operator_took_the_url_away(busi: Busi) -> None:
    """A commit is never refused for what the prepare had accepted: the local transaction is committed by then."""
    with running_broker(**SHORT) as broker, RawClient(broker.url) as client:
        gid, face = new_name("taken-away"), HttpFace(client)
        assert face.prepare(msg(gid, busi, "/TransIn", timeout_to_fail=60)).ok
        broker.restart(allowed_urls=["http://127.0.0.1:1"])
        client.close()
        assert face.submit(msg(gid, busi, "/TransIn")).ok
        assert Looker(client).status(gid) == "submitted"


@pytest.mark.parametrize(
    "headers",
    [
        {"X-A": "b\r\nX-Injected: 1"},
        {"X-A\r\nX-Injected": "1"},
        {"X A": "1"},
        {"": "1"},
        {"Content-Length": "3"},
        {"Transfer-Encoding": "chunked"},
        {"Host": "elsewhere"},
        {"X-A": "x" * 9_000},
    ],
)
@pytest.mark.parametrize("name", ["prepare", "submit"])
def test_headers_that_would_say_something_else_are_refused(
    look: Looker, busi: Busi, name: str, headers: dict[str, str]
) -> None:
    gid = new_name("headers")
    message = _refused(look, name, msg(gid, busi, "/TransIn", branch_headers=headers))
    assert message.startswith("branch_headers")
    assert busi.calls(gid) == []


# --- routes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{BASE}/prepare"),
        ("GET", f"{BASE}/submit"),
        ("POST", f"{BASE}/query"),
        ("GET", f"{BASE}/topic/a"),
        ("GET", f"{BASE}/queryTopic"),
        ("POST", f"{BASE}/"),
        ("GET", "/api/"),
        ("GET", "/api/nothing"),
    ],
)
def test_other_paths_and_methods_are_not_found(look: Looker, method: str, path: str) -> None:
    answer = look.client.request(method, path)
    assert answer.status == 404
    assert answer.json()["message"]


def test_ping_version_and_metrics(look: Looker) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = look.client.request(method, "/api/ping")
        assert (answer.status, answer.json()) == (200, {"msg": "pong"})
    assert look.get("version").json()["version"] == "v1.19.0"
    look.get("query", gid="some-gid")
    text = look.client.request("GET", "/api/metrics").body.decode()
    assert 'route="/api/dtmsvr/query"' in text
    assert "some-gid" not in text  # a label for each gid would have no bound


def test_every_route_of_the_reference_is_there(look: Looker) -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "dtm.md").read_text()
    table = page.partition("<!-- begin: routes -->")[2].partition("<!-- end: routes -->")[0]
    listed = re.findall(r"^\| `([A-Z]+) ([^`]+)`", table, re.MULTILINE)
    assert len(listed) == 16
    for method, path in listed:
        answer = look.client.request(method, f"{BASE}/{path.replace('{name}', 'nobody')}")
        assert answer.status in (200, 500), (method, path, answer)


@pytest.mark.parametrize("payload", ["[1]", "7", '"text"', "no json"])
def test_a_payload_that_json_rpc_cannot_carry_is_refused(face: Face, look: Looker, busi: Busi, payload: str) -> None:
    """Not after the commit, when the call could never be sent."""
    topic = new_name("rpc")
    look.subscribe(topic, f"{busi.url}/json-rpc?method=TransIn")
    for url in (f"{busi.url}/json-rpc?method=TransIn", f"topic://{topic}"):
        trans = msg(new_name("rpc"), busi, "/TransOut", url, protocol="json-rpc")
        trans["payloads"] = [payload, payload]  # the first branch has no method, so it is called over HTTP
        for ask in (face.prepare, face.submit):
            outcome = ask(trans)
            assert (outcome.ok, outcome.failure) == (False, False)
            assert outcome.message.startswith("payloads[1]: expected a JSON object for a JSON-RPC call")


def test_an_address_of_another_scheme_is_refused_with_those_that_are_known(face: Face, busi: Busi) -> None:
    outcome = face.prepare(msg(new_name("scheme"), busi, query_prepared="ftp://127.0.0.1/x"))
    known = "Begin it with http://, https:// or grpc://."
    assert outcome.message == f"query_prepared: unknown scheme (got 'ftp://127.0.0.1/x'). {known}"
    outcome = face.prepare(msg(new_name("scheme"), busi, "ftp://127.0.0.1/x"))
    assert outcome.message.endswith("Begin it with http://, https://, grpc:// or topic://.")
