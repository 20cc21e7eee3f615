"""Old rows are deleted by age, in bounded batches, and nothing else is."""

from __future__ import annotations

import pytest
from parties import Party, Place

from tallystick.barrier import CleanKind, Operation, clean, first_time, keep_digest, mark_committed, prepared_put

DAY = 86_400.0

AGED = {
    "sqlite": "update {table} set {column} = strftime('%Y-%m-%d %H:%M:%f', 'now', '-2 days') where {rows}",
    "postgresql": "update {table} set {column} = now() - interval '2 days' where {rows}",
    "mysql": "update {table} set {column} = utc_timestamp() - interval 2 day where {rows}",
}


def add(kind: CleanKind, name: str) -> Operation[object]:
    if kind == "barrier":
        return mark_committed(name)
    if kind == "inbox":
        return first_time("bank-b", name)
    return keep_digest("bank-b", name, b"x") if kind == "digest" else prepared_put("bank-b", name, b"payload")


async def fill(place: Place, kind: CleanKind, old: int, young: int) -> Party:
    party = await place.open()
    await party.begin()
    for index in range(old):
        await party.run(add(kind, f"old-{index}"))
    for index in range(young):
        await party.run(add(kind, f"young-{index}"))
    await party.commit()
    name, column = NAMES[kind]
    rows = f"{name} like 'old-%'"
    place.query(AGED[place.engine].format(table=f"tallystick_{kind}", column=column, rows=rows))
    return party


NAMES = {
    "barrier": ("gid", "create_time"),
    "inbox": ("message_id", "created_at"),
    "prepared": ("gid", "created_at"),
    "digest": ("message_id", "created_at"),
}


def left(place: Place, kind: CleanKind) -> set[str]:
    only = " where op <> 'identity'" if kind == "barrier" else ""
    return {row[0] for row in place.query(f"select {NAMES[kind][0]} from tallystick_{kind}{only}")}


@pytest.mark.parametrize("table", ["barrier", "inbox", "prepared", "digest"])
async def test_only_old_rows_are_deleted(place: Place, table: CleanKind) -> None:
    party = await fill(place, table, old=7, young=3)
    assert await party.run(clean(table, older_than=3 * DAY)) == 0
    assert await party.run(clean(table, older_than=DAY, batch=3)) == 7
    assert left(place, table) == {"young-0", "young-1", "young-2"}
    assert await party.run(clean(table, older_than=DAY)) == 0


async def test_number_of_batches_is_bounded(place: Place) -> None:
    party = await fill(place, "inbox", old=10, young=0)
    assert await party.run(clean("inbox", older_than=DAY, batch=2, max_batches=3)) == 6
    assert len(left(place, "inbox")) == 4


async def test_rows_that_are_not_two_phase_messages_stay(place: Place) -> None:
    party = await fill(place, "barrier", old=1, young=0)
    place.query(
        "insert into tallystick_barrier (trans_type, gid, branch_id, op, barrier_id, reason) "
        "values ('saga', 'old-saga', '01', 'action', '01', 'action')"
    )
    place.query(AGED[place.engine].format(table="tallystick_barrier", column="create_time", rows="trans_type = 'saga'"))
    assert await party.run(clean("barrier", older_than=DAY)) == 1
    assert left(place, "barrier") == {"old-saga"}


async def test_senseless_age_is_refused(place: Place) -> None:
    party = await place.open()
    with pytest.raises(ValueError, match="older_than"):
        await party.run(clean("inbox", older_than=-1))
