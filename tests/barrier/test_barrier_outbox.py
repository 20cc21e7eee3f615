"""Outbox rows and prepared messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from parties import Party, Place

from tallystick.barrier import (
    AlreadyDecided,
    OutboxRow,
    outbox_change,
    outbox_claim,
    outbox_delete,
    outbox_put,
    prepared_drop,
    prepared_put,
    prepared_take,
)
from tallystick.core.errors import InvalidRequest

PAYLOAD = bytes(range(256)) * 4
BROKER = "http://127.0.0.1:7440"


async def put(place: Place, *gids: str) -> Party:
    producer = await place.open()
    await producer.begin()
    for gid in gids:
        await producer.run(outbox_put(gid, BROKER, PAYLOAD))
    await producer.commit()
    return producer


async def test_outbox_row_goes_with_its_transaction(place: Place, gid: str) -> None:
    driver = await place.open()
    producer = await place.open()
    await producer.begin()
    await producer.run(outbox_put(gid, BROKER, PAYLOAD))
    await producer.rollback()
    assert await driver.run(outbox_claim(older_than=0)) == []
    await put(place, gid)
    assert await driver.run(outbox_claim(older_than=0)) == [OutboxRow(gid, BROKER, PAYLOAD, "commit", 1)]


async def test_claimed_row_is_left_alone_until_it_is_old_again(place: Place, gid: str) -> None:
    await put(place, gid)
    one, other = await place.open(), await place.open()
    assert await one.run(outbox_claim(older_than=60)) == []
    assert [row.attempts for row in await one.run(outbox_claim(older_than=0))] == [1]
    assert await other.run(outbox_claim(older_than=60)) == []
    await asyncio.sleep(0.3)
    assert [row.attempts for row in await other.run(outbox_claim(older_than=0.2))] == [2]


async def test_oldest_rows_are_claimed_first_and_no_more_than_asked(place: Place, gid: str) -> None:
    gids = [f"{gid}-{index}" for index in range(5)]
    producer = await place.open()
    for each in gids:
        await producer.begin()
        await producer.run(outbox_put(each, BROKER, PAYLOAD))
        await producer.commit()
        await asyncio.sleep(0.01)
    driver = await place.open()
    assert [row.gid for row in await driver.run(outbox_claim(older_than=0, limit=3))] == gids[:3]
    assert {row.gid for row in await driver.run(outbox_claim(older_than=0, limit=3))} >= set(gids[3:])


async def test_a_claim_takes_one_address_or_leaves_some_out(place: Place, gid: str) -> None:
    addresses = [f"http://127.0.0.1:{port}" for port in (1, 2, 3)]
    producer = await place.open()
    await producer.begin()
    for address in addresses:
        await producer.run(outbox_put(f"{gid}-{address[-1]}", address, PAYLOAD))
    await producer.commit()

    async def claimed(**options: Any) -> set[str]:
        return {row.broker for row in await producer.run(outbox_claim(older_than=0, **options))}

    assert await claimed(broker=addresses[1]) == {addresses[1]}
    assert await claimed(broker="http://127.0.0.1:4") == set()
    assert await claimed(except_for=addresses[:1]) == set(addresses[1:])
    assert await claimed(except_for=addresses) == set()
    assert await claimed() == set(addresses)
    # The condition on the address holds for the age, too.
    assert {row.broker for row in await producer.run(outbox_claim(older_than=60, broker=addresses[0]))} == set()


async def test_confirmed_rows_are_deleted(place: Place, gid: str) -> None:
    producer = await put(place, f"{gid}-1", f"{gid}-2", f"{gid}-3")
    assert await producer.run(outbox_delete([f"{gid}-1", f"{gid}-2", f"{gid}-1", "unknown"])) == 2
    assert await producer.run(outbox_delete([])) == 0
    assert [row.gid for row in await producer.run(outbox_claim(older_than=0))] == [f"{gid}-3"]


async def test_more_rows_than_one_statement_holds(place: Place, gid: str) -> None:
    gids = [f"{gid}-{index}" for index in range(1100)]
    producer = await put(place, *gids)
    claimed = await producer.run(outbox_claim(older_than=0, limit=2000))
    assert {row.gid for row in claimed} == set(gids)
    assert await producer.run(outbox_delete(gids)) == len(gids)


async def test_gid_already_in_the_outbox_is_refused(place: Place, gid: str) -> None:
    producer = await put(place, gid)
    await producer.begin()
    with pytest.raises(AlreadyDecided, match="used before"):
        await producer.run(outbox_put(gid, BROKER, b"other"))
    await producer.rollback()
    with pytest.raises(InvalidRequest, match="broker"):
        await producer.run(outbox_put(f"{gid}-2", "", b"other"))


async def test_state_changes_only_from_the_expected_one(place: Place, gid: str) -> None:
    producer = await place.open()
    await producer.begin()
    await producer.run(outbox_put(gid, BROKER, PAYLOAD, state="prepare"))
    await producer.commit()
    await producer.begin()
    assert await producer.run(outbox_change(gid, expected="prepare", new="commit")) is True
    assert await producer.run(outbox_change(gid, expected="prepare", new="rollback")) is False
    assert await producer.run(outbox_change("unknown", expected="prepare", new="rollback")) is False
    await producer.commit()
    assert [row.state for row in await producer.run(outbox_claim(older_than=0))] == ["commit"]


async def test_giving_up_and_committing_cannot_both_succeed(place: Place, gid: str) -> None:
    producer, driver = await place.open(), await place.open()
    await producer.begin()
    await producer.run(outbox_put(gid, BROKER, PAYLOAD, state="prepare"))
    await producer.commit()
    await producer.begin()
    assert await producer.run(outbox_change(gid, expected="prepare", new="commit")) is True

    async def give_up() -> bool:
        await driver.begin()
        gave_up = await driver.run(outbox_change(gid, expected="prepare", new="rollback"))
        await driver.commit()
        return gave_up

    waiting = asyncio.create_task(give_up())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await producer.commit()
    assert await waiting is False


async def test_last_prepared_message_counts_and_is_taken_once(place: Place, gid: str) -> None:
    consumer = await place.open()
    await consumer.begin()
    assert await consumer.run(prepared_take("bank-b", gid)) is None
    await consumer.run(prepared_put("bank-b", gid, b"first"))
    await consumer.run(prepared_put("bank-b", gid, PAYLOAD))
    await consumer.run(prepared_put("audit", gid, b"for audit"))
    await consumer.commit()
    await consumer.begin()
    assert await consumer.run(prepared_take("bank-b", gid)) == PAYLOAD
    assert await consumer.run(prepared_take("bank-b", gid)) is None
    await consumer.commit()
    await consumer.begin()
    assert await consumer.run(prepared_take("bank-b", gid)) is None
    assert await consumer.run(prepared_take("audit", gid)) == b"for audit"
    await consumer.rollback()


async def test_taking_goes_with_its_transaction_and_a_rollback_drops(place: Place, gid: str) -> None:
    consumer = await place.open()
    await consumer.begin()
    await consumer.run(prepared_put("bank-b", gid, PAYLOAD))
    await consumer.commit()
    await consumer.begin()
    assert await consumer.run(prepared_take("bank-b", gid)) == PAYLOAD
    await consumer.rollback()
    await consumer.begin()
    assert await consumer.run(prepared_drop("bank-b", gid)) is True
    assert await consumer.run(prepared_drop("bank-b", gid)) is False
    assert await consumer.run(prepared_take("bank-b", gid)) is None
    await consumer.commit()


@pytest.mark.parametrize(("end", "taken"), [("commit", None), ("rollback", PAYLOAD)])
async def test_of_two_that_take_one_gets_it(place: Place, gid: str, end: str, taken: bytes | None) -> None:
    first, second = await place.open(), await place.open()
    await first.begin()
    await first.run(prepared_put("bank-b", gid, PAYLOAD))
    await first.commit()
    await first.begin()
    assert await first.run(prepared_take("bank-b", gid)) == PAYLOAD

    async def also_take() -> bytes | None:
        await second.begin()
        got = await second.run(prepared_take("bank-b", gid))
        await second.rollback()
        return got

    waiting = asyncio.create_task(also_take())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await first.do(end)
    assert await waiting == taken
