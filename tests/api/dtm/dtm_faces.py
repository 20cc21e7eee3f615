"""dtm's protocols by hand, each with the same few operations, so that one test can speak all of them."""

from __future__ import annotations

import itertools
import json
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec

from busi import Busi
from eventually import eventually_equal
from raw_client import Answer, RawClient

BASE = "/api/dtmsvr"
# Waits that are long in production are short here; what is tested is what follows them.
SHORT = {"check_interval": "200ms", "check_interval_cap": "1s", "call_retry_cap": "1s", "call_probe": "200ms"}


class Outcome(msgspec.Struct):
    """What a client makes of an answer: done, FAILURE (final), or an error."""

    ok: bool
    failure: bool = False
    message: str = ""


class Face(Protocol):
    name: str

    def new_gid(self) -> str: ...
    def prepare(self, trans: dict[str, Any]) -> Outcome: ...
    def submit(self, trans: dict[str, Any]) -> Outcome: ...
    def abort(self, trans: dict[str, Any]) -> Outcome: ...


class HttpFace:
    name = "http"

    def __init__(self, client: RawClient) -> None:
        self._client = client

    def new_gid(self) -> str:
        return str(self._client.json("GET", f"{BASE}/newGid").json()["gid"])

    def prepare(self, trans: dict[str, Any]) -> Outcome:
        return self._post("prepare", trans)

    def submit(self, trans: dict[str, Any]) -> Outcome:
        return self._post("submit", trans)

    def abort(self, trans: dict[str, Any]) -> Outcome:
        return self._post("abort", trans)

    def _post(self, name: str, trans: dict[str, Any]) -> Outcome:
        answer = self._client.json("POST", f"{BASE}/{name}", trans)
        if answer.status == 200:
            assert answer.json() == {"dtm_result": "SUCCESS"}
            return Outcome(True)
        content = answer.json()
        assert answer.status in (409, 425, 500), (answer.status, content)
        assert content.get("dtm_result") == {409: "FAILURE", 425: "ONGOING", 500: None}[answer.status]
        return Outcome(False, answer.status == 409, content["message"])


class JsonRpcFace:
    name = "json-rpc"

    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._ids = itertools.count(1)

    def new_gid(self) -> str:
        return str(self.call("newGid", {})["result"]["gid"])

    def prepare(self, trans: dict[str, Any]) -> Outcome:
        return self._post("prepare", trans)

    def submit(self, trans: dict[str, Any]) -> Outcome:
        return self._post("submit", trans)

    def abort(self, trans: dict[str, Any]) -> Outcome:
        return self._post("abort", trans)

    def call(self, method: str, params: Any) -> dict[str, Any]:
        number = str(next(self._ids))
        envelope = {"jsonrpc": "2.0", "method": method, "params": params, "id": number}
        answer = self._client.json("POST", "/api/json-rpc", envelope)
        content: dict[str, Any] = answer.json()
        assert (answer.status, content["jsonrpc"], content["id"]) == (200, "2.0", number)
        return content

    def _post(self, name: str, trans: dict[str, Any]) -> Outcome:
        error = self.call(name, trans)["error"]
        if error is None:
            return Outcome(True)
        return Outcome(False, error["code"] == -32901, error["message"])


class Looker:
    """What every test looks at and changes over HTTP, whichever face it speaks."""

    def __init__(self, client: RawClient) -> None:
        self.client = client

    def get(self, name: str, **query: Any) -> Answer:
        rest = f"?{urlencode(query)}" if query else ""
        return self.client.json("GET", f"{BASE}/{name}{rest}")

    def post(self, name: str, content: Any) -> Answer:
        return self.client.json("POST", f"{BASE}/{name}", content)

    def query(self, gid: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get("query", gid=gid).json()
        return found

    def status(self, gid: str) -> str | None:
        transaction = self.query(gid)["transaction"]
        return None if transaction is None else str(transaction["status"])

    def branches(self, gid: str) -> dict[str, str]:
        """The status of each branch."""
        return {one["branch_id"]: one["status"] for one in self.query(gid)["branches"]}

    def wait(self, gid: str, status: str) -> None:
        eventually_equal(lambda: self.status(gid), status)

    def subscribe(self, topic: str, url: str, remark: str = "") -> None:
        answer = self.get("subscribe", topic=topic, url=url, remark=remark)
        assert (answer.status, answer.json()) == (200, {"dtm_result": "SUCCESS"}), answer


_numbers = itertools.count(1)


def new_name(base: str) -> str:
    """A gid or topic of this test's own: module-wide brokers keep everything."""
    return f"{base}-{next(_numbers)}"


def msg(gid: str, busi: Busi, *paths: str, **options: Any) -> dict[str, Any]:
    """A transaction with one branch a path (or whole URL), retried and checked after a second."""
    urls = [path if "://" in path else busi.url + path for path in paths or ("/TransOut", "/TransIn")]
    return {
        "gid": gid,
        "trans_type": "msg",
        "steps": [{"action": url} for url in urls],
        "payloads": [json.dumps({"amount": 30, "branch": number}) for number in range(len(urls))],
        "query_prepared": f"{busi.url}/QueryPrepared",
        "timeout_to_fail": 1,
        "retry_interval": 1,
        **options,
    }


def jrpc_msg(gid: str, busi: Busi, *methods: str, **options: Any) -> dict[str, Any]:
    urls = [f"{busi.url}/json-rpc?method={method}" for method in methods or ("TransOut", "TransIn")]
    return msg(gid, busi, *urls, protocol="json-rpc", **options)
