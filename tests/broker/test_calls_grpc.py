"""Calls and check-backs over gRPC, against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from called_services import calls_of, done, ending, fine, grpc_service, send, tried
from hypothesis import given
from hypothesis import strategies as st
from inner_broker import inside
from web_sites import closed_port, rough_site, silence

from tallystick.broker.calls.protocols import make_call
from tallystick.broker.calls.verdicts import CallVerdict
from tallystick.broker.checkback.urls import ask_url, understand_grpc
from tallystick.broker.config import LOOPBACK_URLS
from tallystick.broker.outbound import grpc as client
from tallystick.broker.outbound.allow_list import AllowedUrls, Resolver
from tallystick.broker.outbound.answer import MAX_ANSWER_BYTES, GrpcAnswer, OutboundFailed
from tallystick.broker.outbound.outbound import Outbound
from tallystick.core.calls import OutgoingCall

Code = grpc.StatusCode


@contextlib.asynccontextmanager
async def outbound(*addresses: str) -> AsyncIterator[Outbound]:
    allowed = AllowedUrls([*LOOPBACK_URLS, "grpc://shop.internal:*"])
    made = Outbound(allowed, Resolver(allowed, lambda _: list(addresses)) if addresses else None)
    try:
        yield made
    finally:
        await made.close()


async def called(url: str, timeout_ms: int = 5_000, **rest: Any) -> CallVerdict:
    async with outbound() as out:
        return await make_call(out, "g1", OutgoingCall(url, protocol="grpc", branch="01", **rest), timeout_ms)


# --- calls -----------------------------------------------------------------------------------------------------------


async def test_a_call_carries_raw_bytes_and_dtms_metadata() -> None:
    body = b"\x0a\x03\xff\x00\x01"
    async with grpc_service() as there:
        verdict = await called(there.url(), body=body, headers={"X-Tenant": "7", "trace-bin": "\xff"})
        assert verdict == CallVerdict("success")
        ((method, received, metadata),) = there.calls
        assert method == "/busi.Busi/TransIn"
        assert received == body
        marks = {name: value for name, value in metadata.items() if name.startswith("dtm-")}
        assert marks == {
            "dtm-gid": "g1",
            "dtm-trans_type": "msg",
            "dtm-branch_id": "01",
            "dtm-op": "action",
            "dtm-dtm": "",
        }
        assert metadata["x-tenant"] == "7"
        assert metadata["trace-bin"] == b"\xff"


@pytest.mark.parametrize(
    ("code", "details", "outcome"),
    [
        (Code.ABORTED, "no stock", "failure"),
        (Code.ABORTED, "ONGOING", "ongoing"),
        (Code.FAILED_PRECONDITION, "wait", "ongoing"),
        (Code.UNAVAILABLE, "draining", "unreachable"),
        (Code.INTERNAL, "oops", "error"),
        (Code.UNKNOWN, "oops", "error"),
    ],
)
async def test_the_status_decides(code: grpc.StatusCode, details: str, outcome: str) -> None:
    async with grpc_service(ending(code, details)) as there:
        verdict = await called(there.url())
        assert (verdict.outcome, verdict.error) == (outcome, f"{code.name}: {details}")


async def test_a_handler_that_raises_is_an_error() -> None:
    async def raising(_: bytes, __: Any) -> bytes:
        raise RuntimeError("boom")

    async with grpc_service(raising) as there:
        assert (await called(there.url())).outcome == "error"


async def test_an_oversized_answer_is_not_taken() -> None:
    async def large(_: bytes, __: Any) -> bytes:
        return b"x" * (MAX_ANSWER_BYTES + 1)

    async with grpc_service(large) as there:
        verdict = await called(there.url())
        assert verdict.outcome == "error"
        assert verdict.error.startswith("RESOURCE_EXHAUSTED")


async def test_a_large_body_arrives() -> None:
    async with grpc_service() as there:
        body = b"x" * (3 * 1024 * 1024)
        assert (await called(there.url(), body=body)).outcome == "success"
        assert there.calls[0][1] == body


async def test_a_method_that_hangs_runs_into_the_timeout() -> None:
    async def hanging(_: bytes, __: Any) -> bytes:
        await asyncio.sleep(30)
        return b""

    async with grpc_service(hanging) as there:
        began = time.monotonic()
        verdict = await called(there.url(), timeout_ms=300)
        assert time.monotonic() - began < 20
        assert verdict.outcome == "unreachable"
        assert verdict.error.startswith("DEADLINE_EXCEEDED")


async def test_a_port_where_nobody_listens_is_unreachable() -> None:
    verdict = await called(f"grpc://127.0.0.1:{closed_port()}/a.B/C")
    assert verdict.outcome == "unreachable"
    assert not verdict.reached


async def test_a_port_that_does_not_speak_grpc_is_unreachable() -> None:
    async with rough_site(silence) as url:
        verdict = await called(url.replace("http", "grpc") + "/a.B/C", timeout_ms=500)
        assert verdict.outcome == "unreachable"


@pytest.mark.parametrize("path", ["", "/", "/a.B", "/a.B/C/D", "/a.B/C?x=1", "//C", "/a.B/C%20", "/a b/C"])
async def test_what_is_no_method_is_not_called(path: str) -> None:
    async with grpc_service() as there:
        verdict = await called(f"grpc://127.0.0.1:{there.port}{path}")
        assert (verdict.outcome, verdict.reached) == ("error", False)
        assert there.calls == []


async def test_the_service_sees_the_name_it_was_called_by() -> None:
    seen = []

    async def who(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        seen.append(context.peer())
        return b""

    async with grpc_service(who) as there, outbound("127.0.0.1") as out:
        url = f"grpc://shop.internal:{there.port}/a.B/C"
        answer = await out.grpc(url, [], b"", 5)
        assert answer.code == "OK"
        assert seen[0].startswith("ipv4:127.0.0.1")


async def test_of_addresses_of_both_kinds_the_other_is_tried_when_one_refuses() -> None:
    async with grpc_service() as there, outbound("::1", "127.0.0.1") as out:
        answer = await out.grpc(f"grpc://shop.internal:{there.port}/a.B/C", [], b"", 5)
        assert answer.code == "OK"
        assert len(there.calls) == 1


# --- channels --------------------------------------------------------------------------------------------------------


async def test_a_channel_is_used_again_and_closed_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = set()

    async def who(_: bytes, context: grpc.aio.ServicerContext) -> bytes:
        peers.add(context.peer())
        return b""

    async with grpc_service(who) as there, grpc_service() as other, outbound() as out:
        for _ in range(5):
            assert (await out.grpc(there.url(), [], b"", 5)).code == "OK"
        assert len(peers) == 1
        monkeypatch.setattr(client, "IDLE_SECONDS", -1.0)
        assert (await out.grpc(other.url(), [], b"", 5)).code == "OK"
        assert (await out.grpc(there.url(), [], b"", 5)).code == "OK"
        assert len(peers) == 2


async def test_there_are_never_more_channels_than_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_CHANNELS", 2)
    async with outbound() as out:
        for _ in range(5):
            await out.grpc(f"grpc://127.0.0.1:{closed_port()}/a.B/C", [], b"", 2)
            assert len(out._grpc._channels) <= 2


async def test_a_service_that_returns_is_found_at_once() -> None:
    port = closed_port()
    async with outbound() as out:
        url = f"grpc://127.0.0.1:{port}/a.B/C"
        for _ in range(3):
            assert (await out.grpc(url, [], b"", 2)).code == "UNAVAILABLE"
        async with grpc_service(port=port):
            began = time.monotonic()
            while (await out.grpc(url, [], b"", 2)).code != "OK":
                assert time.monotonic() - began < 15
                await asyncio.sleep(0.05)


async def test_closing_ends_calls_that_are_out() -> None:
    async def hanging(_: bytes, __: Any) -> bytes:
        await asyncio.sleep(30)
        return b""

    async with grpc_service(hanging) as there:
        out = Outbound(AllowedUrls(LOOPBACK_URLS))
        task = asyncio.create_task(out.grpc(there.url(), [], b"", 20))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(out.close(), 5)


# --- through a broker ------------------------------------------------------------------------------------------------


async def test_calls_of_both_protocols_in_one_transaction() -> None:
    async with inside() as broker, grpc_service() as there:
        await send(broker, "t", there.url("busi.Busi/TransOut"), there.url("busi.Busi/TransIn"), protocol="grpc")
        await done(broker, "t")
        assert [method for method, _, _ in there.calls] == ["/busi.Busi/TransOut", "/busi.Busi/TransIn"]
        assert [metadata["dtm-branch_id"] for _, _, metadata in there.calls] == ["01", "02"]
        assert broker.metric("calls_made_total", protocol="grpc", outcome="success") == 2


async def test_a_grpc_service_that_says_failure_is_called_again() -> None:
    async with inside() as broker, grpc_service(ending(Code.ABORTED, "no stock")) as there:
        await send(broker, "t", there.url())
        assert (await tried(broker, "t")).last_error == "ABORTED: no stock"
        there.handler = fine
        broker.clock.advance(1_000)
        await done(broker, "t")
        assert (await calls_of(broker, "t")).calls[0].attempts == 2


# --- check-backs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "details", "answer"),
    [
        (Code.OK, "", "committed"),
        (Code.ABORTED, "FAILURE", "rolled_back"),
        (Code.ABORTED, "", "rolled_back"),
        (Code.ABORTED, "ONGOING", "unknown"),
        (Code.FAILED_PRECONDITION, "x", "unknown"),
    ],
)
def test_a_clear_answer_to_a_check(code: grpc.StatusCode, details: str, answer: str) -> None:
    assert understand_grpc(GrpcAnswer(code.name, details)) == answer


@given(
    code=st.sampled_from([one for one in Code if one.name not in ("OK", "ABORTED", "FAILED_PRECONDITION")]),
    details=st.sampled_from(["", "ONGOING", "FAILURE", "SUCCESS", "committed"]),
)
def test_every_other_status_is_no_answer(code: grpc.StatusCode, details: str) -> None:
    with pytest.raises(OutboundFailed) as failed:
        understand_grpc(GrpcAnswer(code.name, details))
    assert code.name in str(failed.value)


async def test_a_check_asks_with_branch_00() -> None:
    async with grpc_service() as there, outbound() as out:
        said = await ask_url(out, there.url("busi.Busi/QueryPrepared"), "g1", 5, {"X-Tenant": "7"})
        assert said == "committed"
        ((method, body, metadata),) = there.calls
        assert (method, body) == ("/busi.Busi/QueryPrepared", b"")
        assert (metadata["dtm-gid"], metadata["dtm-branch_id"], metadata["dtm-op"]) == ("g1", "00", "msg")
        assert metadata["dtm-trans_type"] == "msg"
        assert metadata["x-tenant"] == "7"


@pytest.mark.parametrize(
    ("handler", "state"), [(fine, "committed"), (ending(Code.ABORTED, "FAILURE"), "rolled_back")], ids=["ok", "aborted"]
)
async def test_a_check_over_grpc_decides(handler: Any, state: str) -> None:
    async with inside() as broker, grpc_service(handler) as there:
        await broker.prepare("t", via="url", target=there.url("busi.Busi/QueryPrepared"))
        assert (await broker.becomes("t", state=state)).resolved_by == "check"


@pytest.mark.parametrize(
    ("handler", "soon"),
    [
        (ending(Code.FAILED_PRECONDITION), True),
        (ending(Code.ABORTED, "ONGOING"), True),
        (ending(Code.UNKNOWN, "oops"), True),
        (ending(Code.UNIMPLEMENTED), False),
    ],
    ids=["ongoing", "old-ongoing", "unknown", "unimplemented"],
)
async def test_a_check_over_grpc_without_a_clear_answer_commits_nothing(handler: Any, soon: bool) -> None:
    async with inside() as broker, grpc_service(handler) as there:
        await broker.prepare("t", via="url", target=there.url())
        view = await broker.becomes("t", checks=1, state="prepared")
        wait = view.next_check_at - broker.clock.now_ms()
        assert (wait <= 2_000) is soon
        assert broker.visible() == 0
