"""The brokers of a cluster on MySQL or MariaDB. Who owns a store is said by the fence that its writes are held to."""

from __future__ import annotations

from typing import Any

from tallystick.core.ids import new_store_id
from tallystick.store.kv import keys
from tallystick.store.shared.mysql_link import MysqlLink, quoted
from tallystick.store.shared.mysql_session import MysqlSession
from tallystick.store.shared.registry import Holding, Member, Seen, epoch_after, new_peer_key, wrong_count

_TELL = b"""
    insert into tallystick_cluster_member (id, name, url, grpc_url, beat, leaving)
    values (%s, %s, %s, %s, %d, %d) on duplicate key update beat = values(beat), leaving = values(leaving)
"""
# One statement sees one state of all rows. A session's time zone has hours that come twice, so the clock is UTC's.
_SEE = b"""
    select id, name, url, grpc_url, beat, leaving, null as store, null as epoch from tallystick_cluster_member
    union all
    select stores.id, fence.owner, '', '', 0, false, stores.store, fence.epoch
    from tallystick_cluster_store as stores join tallystick_store_fence as fence on fence.store = stores.store
"""
_CLOCK = b"select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) div 1000"
_CLAIM = b"update tallystick_store_fence set epoch = %d, owner = %s where store = %d and epoch = %d"
_RELEASE = b"update tallystick_store_fence set owner = '' where store = %d and epoch = %d"
_RENAME = b"""
    update tallystick_cluster_store as stores join tallystick_store_fence as fence on fence.store = stores.store
    set stores.id = %(id)s where stores.store = %(store)d and fence.epoch = %(epoch)d
"""
_RENAMED = b"""
    select count(*) from tallystick_cluster_store as stores join tallystick_store_fence as fence
    on fence.store = stores.store where stores.store = %(store)d and fence.epoch = %(epoch)d and stores.id = %(id)s
"""
_FORGET = b"delete from tallystick_cluster_member where id = %s"
_PEER_KEY = b"select secret from tallystick_cluster_secret where name = 'peers'"
_DRAW = b"insert ignore into tallystick_cluster_secret (name, secret) values ('peers', %s)"  # waits, as above
_HIT = b"select row_count()"

_FIRST = b"insert ignore into tallystick_cluster_store (store, id) values (0, '')"  # waits for whoever is making it
_IS_THERE = b"""
    select count(*) from information_schema.tables where table_schema = database() and table_name = %s
"""
_STORED_IDS = b"""
    select fence.store, named.value
    from tallystick_store_fence as fence join tallystick_store_index as named on named.store = fence.store
    where named.`key` = %s
"""
_MADE = b"select count(*) from tallystick_cluster_store where id <> ''"
# A store that somebody has used before there was a cluster keeps the id that lies in it.
_MAKE = b"""
    insert into tallystick_cluster_store (store, id) values (%(store)d, coalesce(
        (select value from tallystick_store_index where store = %(store)d and `key` = %(key)s), %(id)s))
    on duplicate key update id = values(id)
"""
_MAKE_FENCE = b"insert ignore into tallystick_store_fence (store, epoch, unit, owner) values (%d, 0, 0, '')"


class MysqlRegistry(MysqlLink):
    def make(self, count: int) -> None:
        self._make_tables("mysql")
        self._make_tables("mysql_cluster")
        with self._connected() as session:  # which ends with an error, and then with all that was begun
            *_, made = session.send(b";".join((b"begin", _FIRST, _MADE)))
            self._make_stores(session, made[0][0], count)
            session.send(b"commit")

    def _make_stores(self, session: MysqlSession, made: int, count: int) -> None:
        if made and made != count:
            raise wrong_count(made, count)
        for number in range(made, count):
            row = {b"store": number, b"key": quoted(keys.STORE_ID), b"id": quoted(new_store_id().encode())}
            session.send(b";".join((_MAKE_FENCE % number, _MAKE % row)))

    def made(self) -> int:
        if not self._is_there(b"tallystick_cluster_store"):
            return 0
        (count,) = self._ask(_MADE)
        return int(count[0][0])

    def _is_there(self, table: bytes) -> bool:
        (there,) = self._ask(_IS_THERE % quoted(table))
        return bool(there[0][0])

    def stored_ids(self) -> dict[int, str]:
        if not self._is_there(b"tallystick_store_index"):
            return {}
        (found,) = self._ask(_STORED_IDS % quoted(keys.STORE_ID))
        return {int(number): name.decode() for number, name in found}

    def look(self, me: Member) -> Seen:
        told = [quoted(text.encode()) for text in (me.id, me.name, me.url, me.grpc_url)]
        _, rows, clock = self._ask(_TELL % (*told, me.beat, me.leaving), _SEE, _CLOCK)
        members = [_member(row) for row in rows if row[6] is None]
        holdings = sorted((_holding(row) for row in rows if row[6] is not None), key=lambda each: each.number)
        return Seen(tuple(members), tuple(holdings), int(clock[0][0]))

    def claim(self, number: int, expected_epoch: int, owner: str) -> int | None:
        epoch = epoch_after(expected_epoch)
        *_, hit = self._ask(_CLAIM % (epoch, quoted(owner.encode()), number, expected_epoch), _HIT)
        return epoch if hit[0][0] == 1 else None

    def release(self, number: int, epoch: int) -> None:
        self._ask(_RELEASE % (number, epoch))

    def rename(self, number: int, epoch: int, store_id: str) -> bool:
        which = {b"store": number, b"epoch": epoch, b"id": quoted(store_id.encode())}
        *_, renamed = self._ask(_RENAME % which, _RENAMED % which)
        return bool(renamed[0][0])

    def forget(self, member_id: str) -> None:
        self._ask(_FORGET % quoted(member_id.encode()))

    def peer_key(self) -> bytes:
        (found,) = self._ask(_PEER_KEY)
        if not found:
            *_, found = self._ask(_DRAW % quoted(new_peer_key()), _PEER_KEY)
        return bytes(found[0][0])


def _member(row: tuple[Any, ...]) -> Member:
    member_id, name, url, grpc_url = (text.decode() for text in row[:4])
    return Member(member_id, name, url, grpc_url, int(row[4]), bool(row[5]))


def _holding(row: tuple[Any, ...]) -> Holding:
    # What is a number in one half of a union and nothing in the other comes as a decimal.
    return Holding(int(row[6]), row[0].decode(), int(row[7]), row[1].decode())
