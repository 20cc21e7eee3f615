"""Check-back by group: whoever of the producer group holds a long poll is asked."""

from __future__ import annotations

import asyncio
import time

import pytest
from inner_broker import Inside, inside, rounds

from eventually import eventually_async
from tallystick.broker.checkback.members import Members
from tallystick.core.errors import Busy, Conflict, Draining
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Check, Commit, Prepare
from tallystick.core.wire import CheckRequest
from tallystick.store.protocol import Claim, OperatorResolve, Resume


def gids(asked: list[CheckRequest]) -> list[str]:
    return sorted(one.gid for one in asked)


async def settled(*tasks: asyncio.Task[list[CheckRequest]], expected: int = 0) -> list[list[str]]:
    """Let polls be answered, and a little longer; what each was asked, and nothing for those that still wait."""

    async def answered() -> bool:
        return sum(task.done() for task in tasks) >= expected

    await eventually_async(answered, f"{expected} answered polls")
    await rounds()
    return [gids(task.result()) if task.done() else [] for task in tasks]


async def send_home(broker: Inside, *tasks: asyncio.Task[list[CheckRequest]]) -> None:
    broker.broker.checkback.members.close()
    await asyncio.gather(*tasks)


# --- who is asked --------------------------------------------------------------------------------------------------


async def test_a_member_is_asked_and_its_answer_decides() -> None:
    async with inside() as broker:
        await broker.prepare("yes", "no", source="bank")
        asked = await broker.poll()
        assert gids(asked) == ["no", "yes"]
        assert {(one.source, one.checks, one.created_at) for one in asked} == {("bank", 0, broker.clock.now_ms())}
        assert broker.visible() == 0
        await broker.answer(yes="committed", no="rolled_back")
        assert [(await broker.view(gid)).state for gid in ("yes", "no")] == ["committed", "rolled_back"]
        assert (await broker.view("yes")).resolved_by == "check"
        assert broker.visible() == 1


async def test_the_member_that_prepared_is_asked_first() -> None:
    async with inside() as broker:
        others = [broker.polling(f"other{number}") for number in range(3)]
        await asyncio.sleep(0)
        original = broker.polling("original")
        await asyncio.sleep(0)
        await broker.prepare("t", member="original")
        assert await settled(original, *others, expected=1) == [["t"], [], [], []]
        await send_home(broker, *others)


async def test_without_the_original_member_the_others_take_turns() -> None:
    async with inside() as broker:
        polls = {name: broker.polling(name) for name in ("a", "b", "c")}
        asked_in_turn = []
        for number in range(6):
            await broker.prepare(f"t{number}", member="long-gone")
            done, _ = await asyncio.wait(polls.values(), return_when=asyncio.FIRST_COMPLETED, timeout=5)
            (name,) = [name for name, poll in polls.items() if poll in done]
            asked_in_turn.append(name)
            await broker.answer(**{f"t{number}": "committed"})
            polls[name] = broker.polling(name)
            await asyncio.sleep(0)
        assert asked_in_turn == ["a", "b", "c", "a", "b", "c"]
        await send_home(broker, *polls.values())


async def test_many_are_handed_out_evenly_and_at_once() -> None:
    async with inside() as broker:
        await broker.prepare(*(f"t{number}" for number in range(30)))
        # All three wait before the round that their arrival brings.
        polls = [broker.polling(name) for name in ("a", "b", "c")]
        shares = [gids(asked) for asked in await asyncio.gather(*polls)]
        assert [len(share) for share in shares] == [10, 10, 10]
        assert sorted(gid for share in shares for gid in share) == sorted(f"t{number}" for number in range(30))


async def test_a_member_gets_no_more_than_it_asked_for() -> None:
    async with inside() as broker:
        await broker.prepare(*(f"t{number}" for number in range(10)), member="small")
        small, large = broker.polling("small", most=2), broker.polling("large", most=5)
        assert [len(share) for share in await asyncio.gather(small, large)] == [2, 5]
        assert len(await broker.poll("next")) == 3


async def test_a_member_that_could_not_tell_is_not_asked_first_again() -> None:
    async with inside() as broker:
        await broker.prepare("t", member="original")
        assert gids(await broker.poll("original")) == ["t"]
        other = broker.polling("other")
        await asyncio.sleep(0)
        original = broker.polling("original")
        await broker.answer(t="unknown")
        broker.clock.advance(2_000)
        assert await settled(other, original, expected=1) == [["t"], []]
        assert other.result()[0].checks == 1
        await send_home(broker, original)


async def test_one_check_of_a_transaction_at_a_time() -> None:
    async with inside(check_timeout="5s") as broker:
        await broker.prepare("t")
        assert gids(await broker.poll("a")) == ["t"]
        others = [broker.polling(name) for name in ("b", "c")]
        for _ in range(3):
            broker.clock.advance(3_000)
            assert await settled(*others) == [[], []]
        await broker.answer(t="committed")
        assert (await broker.view("t")).state == "committed"
        await send_home(broker, *others)


async def test_a_transaction_resolved_in_time_is_not_asked_about() -> None:
    async with inside() as broker:
        await broker.prepare("in-time", "late", after_ms=1_000)
        await broker.do(Commit("in-time"))
        broker.clock.advance(1_000)
        assert gids(await broker.poll()) == ["late"]


async def test_a_poll_of_the_same_member_replaces_its_older_one() -> None:
    async with inside() as broker:
        older = broker.polling("m")
        await asyncio.sleep(0)
        newer = broker.polling("m")
        assert await asyncio.wait_for(older, 4) == []
        await broker.prepare("t")
        assert gids(await newer) == ["t"]


# --- when it is asked ----------------------------------------------------------------------------------------------


async def test_the_first_check_comes_after_the_time_that_the_transaction_says() -> None:
    async with inside(check_after="10s") as broker:
        await broker.prepare("soon", after_ms=500)
        await broker.prepare("default", after_ms=None)
        await broker.prepare("late", after_ms=60_000)
        asked = []
        for ms in (499, 1, 9_499, 1, 49_999, 1):
            broker.clock.advance(ms)
            asked.append(gids(await broker.poll(ms=250)))
            await broker.answer(**dict.fromkeys(asked[-1], "committed"))
        assert asked == [[], ["soon"], [], ["default"], [], ["late"]]


async def test_one_that_is_due_at_once_is_not_overlooked_among_later_ones() -> None:
    async with inside() as broker:
        await broker.prepare("first")
        poll = broker.polling("m")
        assert gids(await poll) == ["first"]
        poll = broker.polling("m")
        await rounds()  # the broker has looked, and knows of nothing that is due
        wishes = [Check(after_ms=0), Check(after_ms=60_000)]
        messages = [OutgoingMessage("orders", b"")]
        await broker.door.batch([Prepare(f"t{wish.after_ms}", "shop", messages, wish) for wish in wishes], 100)
        assert gids(await asyncio.wait_for(poll, 4)) == ["t0"]


async def test_unknown_is_an_answer_and_backs_off() -> None:
    async with inside() as broker:
        await broker.prepare("t", max_checks=10)
        waits = []
        for checks in range(4):
            (asked,) = await broker.poll()
            assert asked.checks == checks
            await broker.answer(t="unknown")
            view = await broker.view("t")
            assert (view.state, view.checks) == ("prepared", checks + 1)
            assert "could not tell" in view.last_error
            waits.append(view.next_check_at - broker.clock.now_ms())
            broker.clock.advance(view.next_check_at - 1 - broker.clock.now_ms())
            assert await broker.poll(ms=250) == []
            broker.clock.advance(1)
        for wait, full in zip(waits, (2_000, 4_000, 8_000, 16_000), strict=True):
            assert 0.8 * full <= wait <= full


async def test_a_check_without_an_answer_is_counted_when_its_time_is_up() -> None:
    async with inside(check_timeout="300ms") as broker:
        await broker.prepare("t")
        began = time.monotonic()
        assert gids(await broker.poll("silent")) == ["t"]
        view = await broker.becomes("t", checks=1)
        assert time.monotonic() - began >= 0.3
        assert view.last_error == "the member that was asked did not answer in time"
        assert 1_600 <= view.next_check_at - broker.clock.now_ms() <= 2_000
        assert broker.metric("checks_failed_total", via="group", kind="timeout") == 1
        broker.clock.advance(2_000)
        assert gids(await broker.poll("other")) == ["t"]
        await broker.answer(t="committed")
        assert (await broker.view("t")).checks == 2


async def test_an_answer_that_comes_late_still_counts() -> None:
    async with inside(check_timeout="100ms") as broker:
        await broker.prepare("t")
        await broker.poll("slow")
        await broker.becomes("t", checks=1)
        await broker.answer(t="committed")
        assert (await broker.view("t")).state == "committed"


async def test_the_time_of_an_answered_check_does_not_cut_the_next_one_short() -> None:
    async with inside(check_timeout="3s", check_interval="1ms") as broker:
        await broker.prepare("t")
        await broker.poll("m")
        await asyncio.sleep(1.8)
        await broker.answer(t="unknown")
        broker.clock.advance(1_000)
        (asked,) = await broker.poll("m")
        assert asked.checks == 1
        await asyncio.sleep(1.8)  # the first check's time is over, this one's is not
        assert (await broker.view("t")).checks == 1
        await broker.becomes("t", checks=2)


# --- groups do not hold each other up ------------------------------------------------------------------------------


async def test_a_group_without_members_is_neither_counted_nor_in_the_way() -> None:
    async with inside() as broker:
        await broker.prepare(*(f"dead{number}" for number in range(200)), group="dead")
        await rounds()
        broker.clock.advance(60_000)
        await broker.prepare("t", group="alive")
        assert gids(await broker.poll(group="alive")) == ["t"]
        await rounds()
        views = [await broker.view(f"dead{number}") for number in range(200)]
        assert {(view.state, view.checks, view.last_error) for view in views} == {("prepared", 0, "")}
        # A member that comes is asked at once, as for the first time.
        asked = await broker.poll(group="dead", most=1_000)
        assert len(asked) == 200
        assert {one.checks for one in asked} == {0}


async def test_a_silent_group_does_not_delay_another() -> None:
    async with inside(check_timeout="30s") as broker:
        await broker.prepare("stuck", group="silent")
        assert gids(await broker.poll(group="silent")) == ["stuck"]
        began = time.monotonic()
        for number in range(5):
            await broker.prepare(f"t{number}", group="alive")
            assert gids(await broker.poll(group="alive")) == [f"t{number}"]
        assert time.monotonic() - began < 25


async def test_a_member_that_leaves_before_it_is_asked_costs_no_check() -> None:
    async with inside() as broker:
        await broker.prepare("t")
        # The claim of the round that the first poll brings waits behind this look; by then the member is gone.
        slow = broker.look(lambda _: time.sleep(0.4))
        leaving = broker.polling("leaving", ms=100)
        assert await leaving == []
        await slow
        await rounds()
        view = await broker.view("t")
        assert (view.checks, view.last_error) == (0, "no live member")
        broker.clock.advance(1_000)  # a group is looked at once a second if nothing is known to be due
        (asked,) = await broker.poll("next")
        assert (asked.gid, asked.checks) == ("t", 0)


async def test_what_nobody_could_be_asked_about_is_parked_at_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.broker.checkback.scheduler.PARK_EVERY_SECONDS", 0.1)
    async with inside(max_pending_age="1h", dedup_retention="2h") as broker:
        await broker.prepare("old", group="dead", on_exhausted="rollback")
        broker.clock.advance(1_800_000)
        await broker.prepare("young", group="dead")
        await rounds()
        assert (await broker.view("old")).state == "prepared"
        broker.clock.advance(1_800_001)
        view = await broker.becomes("old", state="parked")
        assert (view.checks, view.last_error) == (0, "nobody could be asked")
        await rounds()
        assert (await broker.view("young")).state == "prepared"


# --- checks are used up --------------------------------------------------------------------------------------------


async def used_up(broker: Inside, gid: str, checks: int) -> None:
    for _ in range(checks):
        assert gids(await broker.poll()) == [gid]
        await broker.answer(**{gid: "unknown"})
        broker.clock.advance(60_000)


async def test_used_up_checks_park_and_an_operator_resumes() -> None:
    async with inside() as broker:
        await broker.prepare("t", max_checks=3)
        await used_up(broker, "t", 3)
        view = await broker.view("t")
        assert (view.state, view.checks, view.next_check_at) == ("parked", 3, 0)
        broker.clock.advance(24 * 3_600_000)
        assert await broker.poll(ms=400) == []
        assert broker.visible() == 0

        await broker.one(Resume("t"))
        (asked,) = await broker.poll()
        assert (asked.gid, asked.checks) == ("t", 0)
        await broker.answer(t="committed")
        assert (await broker.view("t")).state == "committed"
        assert broker.visible() == 1
        with pytest.raises(Conflict, match="nothing to resume"):
            await broker.one(Resume("t"))


async def test_a_resumed_transaction_has_all_its_checks_again() -> None:
    async with inside() as broker:
        await broker.prepare("t", max_checks=2)
        for _ in range(2):
            await used_up(broker, "t", 2)
            assert (await broker.view("t")).state == "parked"
            await broker.one(Resume("t"))
        assert broker.metric("parked_total") == 2


async def test_used_up_checks_roll_back_if_the_producer_chose_so() -> None:
    async with inside() as broker:
        await broker.prepare("t", max_checks=2, on_exhausted="rollback")
        await used_up(broker, "t", 2)
        view = await broker.view("t")
        assert (view.state, view.resolved_by, view.checks) == ("rolled_back", "exhausted", 2)
        assert broker.visible() == 0
        with pytest.raises(Conflict, match="rolled_back"):
            await broker.do(Commit("t"))


@pytest.mark.parametrize("setting", ["park", "rollback"])
async def test_the_brokers_own_limits_hold_where_the_producer_says_nothing(setting: str) -> None:
    async with inside(max_checks=1, on_exhausted=setting) as broker:
        await broker.prepare("t")
        await used_up(broker, "t", 1)
        assert (await broker.view("t")).state == {"park": "parked", "rollback": "rolled_back"}[setting]


async def test_a_late_answer_resolves_a_parked_transaction() -> None:
    async with inside() as broker:
        await broker.prepare("t", max_checks=1)
        await used_up(broker, "t", 1)
        await broker.answer(t="rolled_back")
        assert (await broker.view("t")).state == "rolled_back"


async def test_an_operator_decides_while_a_check_is_out() -> None:
    async with inside(check_timeout="200ms") as broker:
        await broker.prepare("t")
        await broker.poll()
        await broker.one(OperatorResolve("t", "committed"))
        await broker.answer(t="rolled_back")
        await asyncio.sleep(0.3)
        view = await broker.view("t")
        assert (view.state, view.resolved_by) == ("committed", "operator")
        assert broker.metric("conflict_total") == 1


# --- the polls themselves ------------------------------------------------------------------------------------------


async def test_a_poll_that_nothing_is_due_for_ends_with_its_time() -> None:
    async with inside() as broker:
        began = time.monotonic()
        assert await broker.poll(ms=150) == []
        assert time.monotonic() - began >= 0.15
        assert broker.broker.checkback.members.waiting == 0


async def test_the_number_of_polls_is_limited_and_a_place_is_given_back() -> None:
    async with inside(max_long_polls=2) as broker:
        polls = [broker.polling(name, group=name) for name in ("a", "b")]
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="2 members are waiting"):
            await broker.poll("c")
        polls[0].cancel()
        await asyncio.gather(polls[0], return_exceptions=True)
        assert await broker.poll("c", ms=10) == []
        await send_home(broker, polls[1])


async def test_draining_sends_polls_home_and_takes_no_new_ones() -> None:
    async with inside() as broker:
        polls = [broker.polling(f"m{number}", group=f"g{number % 2}") for number in range(6)]
        await asyncio.sleep(0)
        broker.broker.drain()
        assert await asyncio.wait_for(asyncio.gather(*polls), 30) == [[]] * 6
        with pytest.raises(Draining):
            await broker.poll("late")


def test_claims_that_nobody_is_there_to_take_come_back() -> None:
    members = Members(10, lambda: None)
    claims = [Claim(1, "group", "", "shop", "m", CheckRequest(f"t{number}")) for number in range(3)]
    assert members.hand_out("shop", claims) == claims
    assert members.capacity("shop") == 0
