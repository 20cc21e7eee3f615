"""Marks and outbox rows go into the transaction that was begun for them, and into no other, on every driver."""

from __future__ import annotations

import pytest
from parties import Place

from tallystick.barrier import AlreadyDecided, TransactionLost, decide
from tallystick.barrier.operations.barrier import mark_committed_here, rename_mark
from tallystick.barrier.operations.identity import ensure_identity
from tallystick.barrier.operations.outbox import outbox_put_here
from tallystick.barrier.operations.tether import begin_tied, require_tied

TOKEN = "0a"


async def test_a_mark_tells_where_it_is(place: Place, gid: str) -> None:
    party = await place.open()
    known = await party.run(ensure_identity())
    await party.run(begin_tied(TOKEN))
    await party.execute("insert into account (id, balance) values (1, 100)")
    assert await party.run(mark_committed_here(gid, TOKEN)) == known
    await party.commit()
    assert await party.run(decide(gid)) == "committed"


async def test_a_row_of_the_outbox_tells_where_it_is(place: Place, gid: str) -> None:
    party = await place.open()
    known = await party.run(ensure_identity())
    await party.run(begin_tied(TOKEN))
    assert await party.run(outbox_put_here(gid, "http://broker", b"\x00\xff", TOKEN)) == known
    await party.commit()
    assert [(row[0], bytes(row[1])) for row in place.query("select gid, payload from tallystick_outbox")] == [
        (gid, b"\x00\xff")
    ]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_nothing_is_put_where_the_transaction_was(place: Place, gid: str, end: str) -> None:
    """In autocommit mode it would be committed at once."""
    party = await place.open()
    for put in (mark_committed_here(gid, TOKEN), outbox_put_here(gid, "http://broker", b"", TOKEN)):
        await party.run(begin_tied(TOKEN))
        await party.do(end)
        with pytest.raises(TransactionLost, match="ended before its commit"):
            await party.run(put)
        await party.rollback()
    assert await party.run(decide(gid)) == "rolled_back"
    assert place.query("select gid from tallystick_outbox") == []


async def test_a_gid_that_is_taken_is_told_apart_from_a_transaction_that_is_lost(place: Place, gid: str) -> None:
    party = await place.open()
    await party.run(begin_tied(TOKEN))
    await party.run(mark_committed_here(gid, TOKEN))
    await party.commit()
    await party.run(begin_tied(TOKEN))
    with pytest.raises(AlreadyDecided) as caught:
        await party.run(mark_committed_here(gid, TOKEN))
    assert caught.value.outcome == "committed"
    await party.rollback()


async def test_a_mark_that_gets_another_gid_leaves_nothing_under_the_first(place: Place, gid: str) -> None:
    party = await place.open()
    await party.run(begin_tied(TOKEN))
    await party.run(mark_committed_here(gid, TOKEN))
    await party.run(rename_mark(gid, f"{gid}-again"))
    await party.commit()
    assert await party.run(decide(gid)) == "rolled_back"
    assert await party.run(decide(f"{gid}-again")) == "committed"


async def test_what_begins_with_its_tie_is_the_transaction_that_it_says(place: Place) -> None:
    party = await place.open()
    await party.run(begin_tied(TOKEN))
    await party.execute("insert into account (id, balance) values (1, 100)")
    await party.run(require_tied(TOKEN))
    await party.rollback()
    assert place.query("select id from account") == []
