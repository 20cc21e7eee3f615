"""Whoever was let in a while ago is asked again: tokens are revoked, made anew, and expire."""

from __future__ import annotations

import asyncio

import pytest
from inner_broker import Inside, inside

from tallystick.api.http import arrow_out
from tallystick.api.serving.asgi import CallerGone
from tallystick.broker.access.tokens import TokensWay
from tallystick.broker.door import BrokerDoor
from tallystick.core.access import Evidence, Grant, Identity
from tallystick.core.calls import OutgoingCall
from tallystick.core.claims import LEEWAY_MS
from tallystick.core.clock import ManualClock
from tallystick.core.errors import BrokerUnavailable, Unauthenticated
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.core.token_records import TokenRecord, TokenSpec, token_of


def evidence(token: str) -> Evidence:
    return Evidence(f"Bearer {token}", "10.0.0.1")


async def known(made: Inside, name: str = "somebody") -> BrokerDoor:
    """The door of somebody with a new token."""
    told, record = token_of(TokenSpec(name, ("admin",)), made.broker.clock.now_ms())
    await made.door.put_token(record)
    return made.door.of(await made.door.caller_of(evidence(told.token)))


@pytest.mark.parametrize("made_anew", [False, True])
async def test_who_waits_for_calls_is_told_nothing_once_the_token_is_revoked(made_anew: bool) -> None:
    async with inside(auth="tokens") as made:
        door = await known(made)
        await made.do(Send([], "sent", [OutgoingCall("http://127.0.0.1:1/nobody")]))
        assert (await door.wait_for_calls("sent", 0.05)).calls
        waiting = asyncio.create_task(door.wait_for_calls("sent", 30))
        await asyncio.sleep(0)
        await made.door.drop_token("somebody")
        if made_anew:
            await known(made)
        await made.door.stop_calls("sent")
        with pytest.raises(Unauthenticated, match="not let in any more"):
            await waiting


@pytest.mark.parametrize("made_anew", [False, True])
async def test_a_stream_breaks_off_once_the_token_is_revoked(made_anew: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_out, "ROWS_AT_ONCE", 2)
    async with inside(auth="tokens", default_queues=1) as made:
        door = await known(made)
        for number in range(20):
            await made.do(Send([OutgoingMessage("orders", b"%d" % number)]))
        whole = arrow_out.QueueStream(door, "orders", 0, 0, None, ("offset", "value"))
        await whole.begin()
        pieces = [piece async for piece in whole.pieces()]
        stream = arrow_out.QueueStream(door, "orders", 0, 0, None, ("offset", "value"))
        await stream.begin()
        begun = stream.pieces()
        found = [await anext(begun)]
        await made.door.drop_token("somebody")
        if made_anew:
            await known(made)
        with pytest.raises(CallerGone):
            found += [piece async for piece in begun]
        await begun.aclose()
        assert len(found) < len(pieces)


# --- tokens ----------------------------------------------------------------------------------------------------------


def kept_token(name: str) -> tuple[str, TokenRecord]:
    told, record = token_of(TokenSpec(name, ("reader",)), 0)
    return told.token, record


async def test_a_token_that_was_made_anew_under_its_name_is_another_one() -> None:
    (old, first), (new, second) = kept_token("shop"), kept_token("shop")
    kept = [first]
    way = TokensWay(ManualClock(), (), lambda: kept)
    before = await way.identity(evidence(old))
    assert before is not None
    assert way.holds(before)
    kept = [second]
    after = await way.identity(evidence(new))
    assert after is not None
    assert (way.holds(before), way.holds(after)) == (False, True)


async def test_who_cannot_tell_which_tokens_hold_lets_in_those_of_its_configuration_alone() -> None:
    (stored, first), (static, second) = kept_token("stored"), kept_token("static")
    connected = True

    def kept() -> list[TokenRecord]:
        if not connected:
            raise BrokerUnavailable("cut off")
        return all_of_them

    all_of_them = [first]
    way = TokensWay(ManualClock(), [second], kept)
    found = await way.identity(evidence(stored))
    assert found is not None
    connected = False
    with pytest.raises(BrokerUnavailable):
        await way.identity(evidence(stored))
    with pytest.raises(BrokerUnavailable):
        way.holds(found)
    configured = await way.identity(evidence(static))
    assert configured is not None
    assert (configured.name, way.holds(configured)) == ("static", True)
    connected = True
    assert way.holds(found)


def test_a_jwt_holds_as_long_after_as_it_may_be_late() -> None:
    clock = ManualClock()
    way = TokensWay(clock)
    somebody = Identity("ann", "jwt", (Grant(("reader",)),), expires_at=clock.now_ms() + 1_000)
    token = Identity("shop", "static", (Grant(("reader",)),), expires_at=clock.now_ms() + 1_000)
    clock.advance(1_000)
    assert (way.holds(somebody), way.holds(token)) == (True, False)
    clock.advance(LEEWAY_MS)
    assert not way.holds(somebody)
