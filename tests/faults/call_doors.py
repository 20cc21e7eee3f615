"""The two doors through which calls come into a broker: the native API and dtm's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
from broker_script import Broken
from call_history import Told, body_of
from call_service import Service

from eventually import SECONDS, eventually
from raw_client import Answer, Gone, RawClient
from tallystick.core.calls import CallPolicy, OutgoingCall
from tallystick.core.errors import AlreadyResolved, NotFound, OutcomeConflict, TallystickError
from tallystick.core.ops import Check, Commit, Prepare, Rollback

CHECK_AFTER_MS = 1_000


class Door(Protocol):
    """Each method may be repeated. `Broken`: no answer, so it may have happened or not."""

    def prepare(self, gid: str, branches: list[str], concurrent: bool = False) -> None: ...

    def submit(self, gid: str) -> Told:
        """`ok` once it is submitted, `failed` if it was rolled back before."""

    def abort(self, gid: str) -> Told:
        """`failed` once it is rolled back, `ok` if it was submitted before."""


def calls_of(service: Service, gid: str, branches: list[str]) -> list[OutgoingCall]:
    return [OutgoingCall(f"{service.url}/{branch}", body_of(gid, branch)) for branch in branches]


class NativeDoor:
    def __init__(self, client: RawClient, service: Service, check_after_ms: int = CHECK_AFTER_MS) -> None:
        self.client, self.service, self.after_ms = client, service, check_after_ms

    def prepare(self, gid: str, branches: list[str], concurrent: bool = False) -> None:
        check = Check("url", self.service.check_url, after_ms=self.after_ms, max_checks=1_000)
        calls, options = calls_of(self.service, gid, branches), CallPolicy(concurrent=concurrent)
        try:
            self._do(Prepare(gid, "shop", [], check, calls=calls, call_options=options))
        except AlreadyResolved:
            return

    def submit(self, gid: str) -> Told:
        try:
            self._do(Commit(gid))
        except OutcomeConflict:
            return "failed"
        return "ok"

    def abort(self, gid: str) -> Told:
        try:
            self._do(Rollback(gid))
        except OutcomeConflict:
            return "ok"
        return "failed"

    def _do(self, op: Any) -> None:
        try:
            self.client.do(op)
        except (*Gone, msgspec.DecodeError) as error:  # the second: an answer that was cut off before its length
            raise Broken from error
        except TallystickError as error:
            if error.code in ("storage_failed", "draining"):
                raise Broken from error
            raise


class DtmDoor:
    def __init__(self, client: RawClient, service: Service, check_after_s: int = CHECK_AFTER_MS // 1_000) -> None:
        self.client, self.service, self.after_s = client, service, check_after_s
        self.known: dict[str, dict[str, Any]] = {}

    def prepare(self, gid: str, branches: list[str], concurrent: bool = False) -> None:
        self.known[gid] = self.request(gid, branches, concurrent)
        answer = self._post("prepare", self.known[gid])
        assert answer.status in (200, 409), answer.body

    def request(self, gid: str, branches: list[str], concurrent: bool = False) -> dict[str, Any]:
        return {
            "gid": gid,
            "trans_type": "msg",
            "steps": [{"action": f"{self.service.url}/{branch}"} for branch in branches],
            "payloads": [body_of(gid, branch).decode() for branch in branches],
            "query_prepared": self.service.check_url,
            "timeout_to_fail": self.after_s,
            "retry_interval": 1,
            "concurrent": concurrent,
        }

    def submit(self, gid: str) -> Told:
        answer = self._post("submit", self.known[gid])
        return "ok" if answer.status == 200 else _by_status(answer)

    def abort(self, gid: str) -> Told:
        answer = self._post("abort", {"gid": gid, "trans_type": "msg"})
        if answer.status == 200 or b"no TransGlobal with gid" in answer.body:
            return "failed"
        return _by_status(answer)

    def _post(self, route: str, content: Any) -> Answer:
        try:
            answer = self.client.json("POST", f"/api/dtmsvr/{route}", content)
            answer.json()
        except (*Gone, ValueError) as error:
            raise Broken from error
        if answer.status == 503:  # the store has stopped, or the broker is going
            raise Broken
        return answer


def _by_status(answer: Answer) -> Told:
    """What a refusal tells of the transaction: `current status 'failed', cannot ...`."""
    assert answer.status == 409, answer.body
    found = re.search(r"status '(\w+)'", answer.json()["message"])
    assert found is not None, answer.body
    return "failed" if found[1] == "failed" else "ok"


def doors(client: RawClient, service: Service) -> list[Door]:
    return [NativeDoor(client, service), DtmDoor(client, service)]


# --- looking -------------------------------------------------------------------------------------------------------


def calls_view(client: RawClient, gid: str) -> dict[str, Any] | None:
    """A transaction's calls as the broker shows them; None if it has none, or is not known."""
    answer = client.json("GET", f"/v1/transactions/{quote(gid, safe='')}/calls")
    if answer.status == 404:
        return None
    assert answer.status == 200, answer.body
    view: dict[str, Any] = answer.json()
    for call in view["calls"]:
        call.setdefault("attempts", 0)
    return view


def calls_state(client: RawClient, gid: str) -> str | None:
    view = calls_view(client, gid)
    return None if view is None else view["state"]


def eventually_answered(look: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait until it is so, whatever a broker says, or does not say, before."""
    eventually(look, what, seconds, ignoring=(*Gone, NotFound, Broken))
