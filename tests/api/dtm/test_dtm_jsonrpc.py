"""JSON-RPC's own rules: the envelope and its error codes (dtm's TestMsgJprcAbnormal and TestMsgJprcAbnormal2)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dtm_faces import JsonRpcFace, msg, new_name

from busi import Busi
from raw_client import RawClient

NO_OBJECTS: list[Any] = ["", "text", 7, True, [], [{"gid": "x"}]]


def _post(client: RawClient, content: Any) -> dict[str, Any]:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer = client.request("POST", "/api/json-rpc", body)
    assert answer.status == 200
    found: dict[str, Any] = answer.json()
    assert set(found) == {"jsonrpc", "id", "error", "result"}
    return found


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"no json", -32700),
        (b"\xff\xfe", -32700),
        (b"[1]", -32700),
        ({}, -32600),
        ({"jsonrpc": "2.0", "method": "newGid"}, -32600),
        ({"jsonrpc": "1.0", "method": "newGid", "id": "1"}, -32600),
        ({"jsonrpc": "2.0", "method": "nothing", "id": "1"}, -32601),
        ({"jsonrpc": "2.0", "id": "1"}, -32601),
        ({"jsonrpc": "2.0", "method": "submit", "id": "1"}, -32603),
        ({"jsonrpc": "2.0", "method": "submit", "id": "1", "params": None}, -32603),
        ({"jsonrpc": "2.0", "method": "submit", "id": "1", "params": {"gid": 7, "trans_type": "msg"}}, -32603),
        # As dtm does, the envelope is judged first, and `params` only where a method reads them.
        *(({"jsonrpc": "1.0", "method": "newGid", "id": "1", "params": params}, -32600) for params in NO_OBJECTS),
        *(({"jsonrpc": "2.0", "method": "nothing", "id": "1", "params": params}, -32601) for params in NO_OBJECTS),
        *(({"jsonrpc": "2.0", "method": "prepare", "id": "1", "params": params}, -32603) for params in NO_OBJECTS),
        *(({"jsonrpc": "2.0", "method": "abort", "id": "1", "params": params}, -32603) for params in NO_OBJECTS),
        ({"jsonrpc": "2.0", "method": "registerBranch", "id": "1", "params": {"trans_type": "tcc"}}, -32603),
        ({"jsonrpc": "2.0", "method": "abort", "id": "1", "params": {"gid": "x", "trans_type": "msg"}}, -32603),
    ],
)
def test_what_is_wrong_has_its_code(client: RawClient, content: Any, code: int) -> None:
    found = _post(client, content)
    assert found["error"]["code"] == code
    assert found["error"]["message"]
    assert "Traceback" not in found["error"]["message"]
    assert found["result"] is None
    assert found["id"] == (content.get("id", "") if isinstance(content, dict) else "")


def test_a_method_without_parameters_takes_any(client: RawClient) -> None:
    for params in NO_OBJECTS:
        found = _post(client, {"jsonrpc": "2.0", "method": "newGid", "id": "a", "params": params})
        assert (found["error"], found["id"]) == (None, "a")
        assert found["result"]["gid"]


def test_params_that_are_no_object_are_named(client: RawClient) -> None:
    found = _post(client, {"jsonrpc": "2.0", "method": "submit", "id": "a", "params": [1]})
    assert found["error"]["message"].startswith("params: expected a JSON object (got list).")


def test_a_new_gid_and_a_failure(client: RawClient, busi: Busi) -> None:
    gid = _post(client, {"jsonrpc": "2.0", "method": "newGid", "id": "a"})["result"]["gid"]
    trans = msg(gid, busi)
    for method, code in (("prepare", None), ("abort", None), ("submit", -32901), ("abort", -32901)):
        found = _post(client, {"jsonrpc": "2.0", "method": method, "params": trans, "id": "a"})
        assert (found["error"] or {}).get("code") == code, (method, found)


def test_other_kinds_of_transaction_are_refused_with_a_sentence(client: RawClient, busi: Busi) -> None:
    outcome = JsonRpcFace(client).submit(msg(new_name("saga"), busi, trans_type="saga"))
    assert not outcome.ok
    assert "'saga' is not supported, only 'msg'" in outcome.message


def test_only_post_is_there(client: RawClient) -> None:
    assert client.request("GET", "/api/json-rpc").status == 404
