"""Inbox rows and offsets: an effect happens once, whoever delivers the message again."""

from __future__ import annotations

import asyncio

import pytest
from parties import DRIVER_ERRORS, Place
from sqlalchemy.exc import DBAPIError

from tallystick.barrier import advance_offset, first_time, read_offset
from tallystick.barrier.operations.inbox import allow_commit, first_times, forbid_commit
from tallystick.core.errors import InvalidRequest

QUEUE = ("bank-b", "store1", "transfers", 3)


async def test_message_is_new_once_per_group(place: Place, gid: str) -> None:
    consumer = await place.open()
    await consumer.begin()
    assert await consumer.run(first_time("bank-b", f"{gid}/0")) is True
    assert await consumer.run(first_time("bank-b", f"{gid}/1")) is True
    assert await consumer.run(first_time("audit", f"{gid}/0")) is True
    await consumer.commit()
    await consumer.begin()
    assert await consumer.run(first_time("bank-b", f"{gid}/0")) is False
    assert await consumer.run(first_time("audit", f"{gid}/1")) is True
    await consumer.commit()


async def test_inbox_row_goes_with_its_transaction(place: Place, gid: str) -> None:
    consumer = await place.open()
    await consumer.begin()
    assert await consumer.run(first_time("bank-b", gid)) is True
    await consumer.rollback()
    await consumer.begin()
    assert await consumer.run(first_time("bank-b", gid)) is True
    await consumer.rollback()


@pytest.mark.parametrize(("end", "new"), [("commit", False), ("rollback", True)])
async def test_second_consumer_waits_for_the_first(place: Place, gid: str, end: str, new: bool) -> None:
    first, second = await place.open(), await place.open()
    await first.begin()
    assert await first.run(first_time("bank-b", gid)) is True

    async def again() -> bool:
        await second.begin()
        answer = await second.run(first_time("bank-b", gid))
        await second.rollback()
        return answer

    waiting = asyncio.create_task(again())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await first.do(end)
    assert await waiting is new


async def test_a_commit_is_refused_until_it_is_allowed_where_an_engine_can(place: Place, gid: str) -> None:
    consumer = await place.open()
    await consumer.begin()
    if not await consumer.run(forbid_commit()):
        assert consumer.adapter.dialect.name != "postgresql"
        return
    assert await consumer.run(first_times("bank-b", [f"{gid}/0", f"{gid}/1"])) == {f"{gid}/0", f"{gid}/1"}
    with pytest.raises((*DRIVER_ERRORS, DBAPIError), match="must not commit"):
        await consumer.commit()
    await consumer.rollback()
    await consumer.begin()
    assert await consumer.run(forbid_commit())
    assert await consumer.run(first_times("bank-b", [f"{gid}/1"])) == {f"{gid}/1"}
    await consumer.run(allow_commit())
    await consumer.commit()
    await consumer.begin()
    assert await consumer.run(forbid_commit())
    assert await consumer.run(first_times("bank-b", [f"{gid}/0", f"{gid}/1", f"{gid}/0"])) == {f"{gid}/0"}
    await consumer.rollback()
    await consumer.begin()
    with pytest.raises((*DRIVER_ERRORS, DBAPIError), match="tallystick_batch"):  # the transaction is another one
        await consumer.run(allow_commit())
    await consumer.rollback()


async def test_message_id_that_does_not_fit_is_refused(place: Place) -> None:
    consumer = await place.open()
    for bad in ("", "x" * 256, "a\x00b"):
        with pytest.raises(InvalidRequest, match="message_id"):
            await consumer.run(first_time("bank-b", bad))
    with pytest.raises(InvalidRequest, match="group"):
        await consumer.run(first_time("not a name", "m"))


async def test_offset_moves_only_from_where_it_is_expected(place: Place) -> None:
    consumer = await place.open()
    await consumer.begin()
    assert await consumer.run(read_offset(*QUEUE)) is None
    assert await consumer.run(advance_offset(*QUEUE, expected=5, new=6)) is False
    assert await consumer.run(advance_offset(*QUEUE, expected=None, new=10)) is True
    assert await consumer.run(advance_offset(*QUEUE, expected=None, new=11)) is False
    assert await consumer.run(advance_offset(*QUEUE, expected=9, new=11)) is False
    assert await consumer.run(advance_offset(*QUEUE, expected=10, new=11)) is True
    assert await consumer.run(advance_offset(*QUEUE, expected=10, new=12)) is False
    assert await consumer.run(read_offset(*QUEUE)) == 11
    assert await consumer.run(read_offset("bank-b", "store1", "transfers", 4)) is None
    assert await consumer.run(read_offset("bank-b", "store2", "transfers", 3)) is None
    await consumer.commit()
    assert await consumer.run(read_offset(*QUEUE)) == 11
    await consumer.rollback()


async def test_offset_goes_with_its_transaction(place: Place) -> None:
    consumer = await place.open()
    await consumer.begin()
    assert await consumer.run(advance_offset(*QUEUE, expected=None, new=2**40)) is True
    await consumer.commit()
    await consumer.begin()
    assert await consumer.run(advance_offset(*QUEUE, expected=2**40, new=2**40 + 5)) is True
    await consumer.rollback()
    await consumer.begin()
    assert await consumer.run(read_offset(*QUEUE)) == 2**40
    await consumer.rollback()


async def test_of_two_consumers_that_move_an_offset_one_is_told_to_roll_back(place: Place) -> None:
    first, second = await place.open(), await place.open()
    await first.begin()
    assert await first.run(advance_offset(*QUEUE, expected=None, new=10)) is True
    await first.commit()
    await first.begin()
    assert await first.run(advance_offset(*QUEUE, expected=10, new=20)) is True

    async def other() -> bool:
        await second.begin()
        moved = await second.run(advance_offset(*QUEUE, expected=10, new=20))
        await second.rollback()
        return moved

    waiting = asyncio.create_task(other())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await first.commit()
    assert await waiting is False


@pytest.mark.parametrize(("expected", "new"), [(4, 4), (None, -1)])
async def test_senseless_move_is_refused(place: Place, expected: int | None, new: int) -> None:
    consumer = await place.open()
    with pytest.raises(InvalidRequest, match="new offset"):
        await consumer.run(advance_offset(*QUEUE, expected=expected, new=new))
