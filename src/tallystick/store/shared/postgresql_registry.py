"""The brokers of a cluster on PostgreSQL. Who owns a store is said by the fence that its writes are held to."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from psycopg.types.numeric import Int4, Int8

from tallystick.core.ids import new_store_id
from tallystick.store.kv import keys
from tallystick.store.shared.postgresql import PostgresqlLink
from tallystick.store.shared.registry import Holding, Member, Seen, epoch_after, new_peer_key, wrong_count
from tallystick.store.shared.server import ServerAway

IN_PLACE_SECONDS = 5.0  # before an insert is tried again on a server without room

_SEE = """
    select
        (select json_agg(json_build_object(
            'id', member.id, 'name', name, 'url', url, 'grpc_url', grpc_url, 'leaving', leaving,
            'beat', greatest(member.beat, newest.beat)))
            from tallystick_cluster_member as member left join lateral (
                select beating.beat from tallystick_cluster_beat as beating where beating.id = member.id
                order by beating.beat desc limit 1) as newest on true),
        (select json_agg(json_build_object('number', store, 'id', id, 'epoch', epoch, 'owner', owner) order by store)
            from tallystick_cluster_store join tallystick_store_fence using (store)),
        (extract(epoch from clock_timestamp()) * 1000)::int8
"""
# Each beat is a row, added under its number and deleted when some more have come: a row that is updated with each beat
# grows a version every time, and a snapshot that is held elsewhere keeps them all, to be walked over by every look. The
# newest beat is the last row of the member's, whatever is dead before it.
# The member's own row changes only with what it says, or while there is a member without beats: a broker of an earlier
# version, which looks at that row alone.
# A member's own rows are as they were before: all parts of a statement see that. The caller knows better.
_BEAT = """
    with me (id, name, url, grpc_url, beat, leaving) as (values (%b, %b, %b, %b, %b, %b)),
    told as (
        insert into tallystick_cluster_member (id, name, url, grpc_url, beat, leaving) select * from me
        where not exists(
            select from tallystick_cluster_member as known where known.id = me.id and known.leaving = me.leaving)
        or exists(
            select from tallystick_cluster_member as other where other.id <> me.id and not exists(
                select from tallystick_cluster_beat as beating where beating.id = other.id))
        on conflict (id) do update set beat = excluded.beat, leaving = excluded.leaving),
    beaten as (
        insert into tallystick_cluster_beat (id, beat) select id, beat from me on conflict (id, beat) do nothing),
    pruned as (
        delete from tallystick_cluster_beat using me
        where tallystick_cluster_beat.id = me.id and tallystick_cluster_beat.beat = me.beat - 4)
"""
_LOOK = f"{_BEAT} {_SEE}"
# On a full disk an insert may have no page to go to, while an update finds room in the page of the row. The other
# brokers read both places. The versions of this one row pile up under a snapshot that is held elsewhere, so this is
# only for the time without room.
_BEAT_IN_PLACE = """
    with me (id, name, url, grpc_url, beat, leaving) as (values (%b, %b, %b, %b, %b, %b)),
    beaten as (
        insert into tallystick_cluster_member (id, name, url, grpc_url, beat, leaving) select * from me
        on conflict (id) do update set beat = excluded.beat, leaving = excluded.leaving)
"""
_LOOK_IN_PLACE = f"{_BEAT_IN_PLACE} {_SEE}"
# Rows that `_BEAT` would have deleted during the beats in place.
_PRUNE = "delete from tallystick_cluster_beat where id = %b and beat < %b returning id"
_CLAIM = """
    update tallystick_store_fence set epoch = %b, owner = %b where store = %b and epoch = %b returning epoch
"""
# Without room to move what the units' rows hold, a claim leaves them: an update that changes the number is no move.
# Rows that were moved are deleted, so all rows from a negative number on are those that were not. No unit has such a
# number.
_CLAIM_UNMOVED = """
    update tallystick_store_fence set epoch = %b, owner = %b, unit = least(unit, 0) - 1 where store = %b and epoch = %b
    returning epoch
"""
_RELEASE_UNMOVED = """
    update tallystick_store_fence set owner = '', unit = least(unit, 0) - 1 where store = %b and epoch = %b
    returning epoch
"""
_RELEASE = "update tallystick_store_fence set owner = '' where store = %b and epoch = %b returning epoch"
# The fence's row is locked meanwhile, so that nobody claims the store in between.
_RENAME = """
    with fenced as (select store from tallystick_store_fence where store = %b and epoch = %b for update)
    update tallystick_cluster_store set id = %b where store = (select store from fenced) returning id
"""
_FORGET = """
    with beats as (delete from tallystick_cluster_beat where id = %b)
    delete from tallystick_cluster_member where id = %b returning id
"""
_PEER_KEY = "select secret from tallystick_cluster_secret where name = 'peers'"
# Waits for whoever is drawing one.
_DRAW = """
    insert into tallystick_cluster_secret (name, secret) values ('peers', %b) on conflict (name) do nothing
    returning name
"""
# A store that somebody has used before there was a cluster keeps the id that lies in it.
_MAKE = """
    with made as (
        insert into tallystick_store_fence (store, epoch, unit, owner) values (%(store)s, 0, 0, '')
        on conflict (store) do nothing)
    insert into tallystick_cluster_store (store, id) values (%(store)s, coalesce(
        (select convert_from(value, 'UTF8') from tallystick_store_index where store = %(store)s and key = %(key)s),
        %(id)s))
"""

_STORED_IDS = """
    select fence.store, convert_from(named.value, 'UTF8')
    from tallystick_store_fence as fence join tallystick_store_index as named on named.store = fence.store
    where named.key = %b
"""


class PostgresqlRegistry(PostgresqlLink):
    """The looks have connections of their own: a beat that a crash of the server takes back does no harm, so nobody
    waits for the disk. Claims and releases are as durable as the stores are."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._looking = _Looking(url)

    def make(self, count: int) -> None:
        self._make_tables("postgresql")
        self._make_tables("postgresql_cluster")
        with self._making() as connection:
            found = connection.execute("select count(*) from tallystick_cluster_store").fetchone()
            made = found[0] if found else 0
            if made and made != count:
                raise wrong_count(made, count)
            for number in range(made, count):
                connection.execute(_MAKE, {"store": number, "key": keys.STORE_ID, "id": new_store_id()})

    def made(self) -> int:
        if self._rows("select to_regclass('tallystick_cluster_store')")[0][0] is None:
            return 0
        count: int = self._rows("select count(*) from tallystick_cluster_store")[0][0]
        return count

    def stored_ids(self) -> dict[int, str]:
        if self._rows("select to_regclass('tallystick_store_fence')")[0][0] is None:
            return {}
        return dict(self._rows(_STORED_IDS, keys.STORE_ID))

    def look(self, me: Member) -> Seen:
        return self._looking.look(me)

    def claim(self, number: int, expected_epoch: int, owner: str) -> int | None:
        epoch = Int8(epoch_after(expected_epoch))
        claimed = self._moving((_CLAIM, _CLAIM_UNMOVED), epoch, owner, Int4(number), Int8(expected_epoch))
        return claimed[0][0] if claimed else None

    def release(self, number: int, epoch: int) -> None:
        self._moving((_RELEASE, _RELEASE_UNMOVED), Int4(number), Int8(epoch))

    def _moving(self, statements: tuple[str, str], *parameters: Any) -> list[tuple[Any, ...]]:
        """The second statement is for a server without room to move anything."""
        try:
            return self._rows(statements[0], *parameters)
        except ServerAway as error:
            if not error.full:
                raise
            return self._rows(statements[1], *parameters)

    def rename(self, number: int, epoch: int, store_id: str) -> bool:
        return bool(self._rows(_RENAME, Int4(number), Int8(epoch), store_id))

    def forget(self, member_id: str) -> None:
        self._rows(_FORGET, member_id, member_id)

    def peer_key(self) -> bytes:
        if not (found := self._rows(_PEER_KEY)):
            self._rows(_DRAW, new_peer_key())
            found = self._rows(_PEER_KEY)
        return bytes(found[0][0])

    def cut(self) -> None:
        super().cut()
        self._looking.cut()

    def close(self) -> None:
        self.cut()


class _Looking(PostgresqlLink):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._in_place_until = 0.0  # beats are updates; 0 if the last one was inserted

    def _set_up(self) -> dict[str, str]:
        return {**super()._set_up(), "synchronous_commit": "off"}

    def look(self, me: Member) -> Seen:
        beat = (me.id, me.name, me.url, me.grpc_url, Int8(me.beat), me.leaving)
        if time.monotonic() >= self._in_place_until:
            try:
                row = self._rows(_LOOK, *beat)[0]
            except ServerAway as error:
                if not error.full:
                    raise
                self._in_place_until = time.monotonic() + IN_PLACE_SECONDS
            else:
                if self._in_place_until:
                    self._rows(_PRUNE, me.id, Int8(me.beat - 4))
                    self._in_place_until = 0.0
                return _seen(me, *row)
        try:
            return _seen(me, *self._rows(_LOOK_IN_PLACE, *beat)[0])
        except ServerAway as error:
            if not error.full:
                raise
            seen = _seen(me, *self._rows(_SEE)[0])
            return msgspec.structs.replace(seen, unheard=error.reason)


def _seen(me: Member, members: Any, holdings: Any, now_ms: int) -> Seen:
    others = [member for member in msgspec.convert(members or [], list[Member]) if member.id != me.id]
    return Seen((me, *others), msgspec.convert(holdings or [], tuple[Holding, ...]), now_ms)
