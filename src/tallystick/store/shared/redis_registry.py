"""The brokers of a cluster on Redis. Who owns a store is said by the fence that its writes are held to.

What the registry has of its own, the members and the stores' ids, has one hash tag; each fence has that of its store.
On a Redis Cluster these lie on several nodes. A claim is one script where the fence is. A look asks every node once for
the fences that it has, and then the one that knows the members; in this order, because an owner tells of itself before
it claims anything, so it is among the members that are read after the fence that names it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
from redis import Redis
from redis.exceptions import MovedError, RedisError

from tallystick.core.ids import new_store_id
from tallystick.core.limits import MOST_STORES
from tallystick.store.kv import keys
from tallystick.store.shared.redis_link import RedisLink, store_tag
from tallystick.store.shared.registry import Holding, Member, Seen, epoch_after, new_peer_key, wrong_count
from tallystick.store.shared.server import ServerAway

_TAG = "{ts:cluster}"
_MEMBERS, _STORES, _PEER_KEY = f"{_TAG}:members", f"{_TAG}:stores", f"{_TAG}:peer-key"

Owned = tuple[int, str]  # an epoch, and its owner


class RedisRegistry(RedisLink):
    answer_seconds = 5.0  # one node that hangs must not hold up for long what is told of the others

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._looking, self._claiming, self._making = map(self._script, ("look", "claim", "make"))
        self._count = 0  # of the stores, once it is known: it never changes
        self._known: dict[int, Owned] = {}  # what was last read of each fence

    def make(self, count: int) -> None:
        found: list[Any] = self._ask_for(_TAG, lambda client: client.lrange(_STORES, 0, -1))
        if not found:
            wanted = [self._stored_id(number) or new_store_id() for number in range(count)]
            found = self._ask_for(_TAG, lambda client: self._making([_STORES], wanted, client))
        if len(found) != count:
            raise wrong_count(len(found), count)

    def _stored_id(self, number: int) -> str:
        """A store that somebody has used before there was a cluster keeps the id that lies in it."""
        tag = store_tag(number)
        found: list[Any] = self._ask_for(tag, lambda client: client.hmget(f"{tag}:index", [keys.STORE_ID]))
        return found[0].decode() if found[0] else ""

    def made(self) -> int:
        count: Any = self._ask_for(_TAG, lambda client: client.llen(_STORES))
        return int(count)

    def stored_ids(self) -> dict[int, str]:
        """There is no list of stores before a cluster is made: every number that one can have is looked at."""
        return {number: name for number in range(MOST_STORES) if (name := self._stored_id(number))}

    def look(self, me: Member) -> Seen:
        self._known |= self._fences(range(self._count))
        arguments: list[bytes | str] = [me.id, msgspec.json.encode(me)]
        members, ids, clock = self._ask_for(_TAG, lambda client: self._looking([_MEMBERS, _STORES], arguments, client))
        if len(ids) != self._count:  # the first look
            self._count = len(ids)
            return self.look(me)
        # A fence that cannot be read hides no other. Whatever is believed of its store, the fence decides.
        holdings = (Holding(at, name.decode(), *self._known.get(at, (0, ""))) for at, name in enumerate(ids))
        known = (msgspec.json.decode(member, type=Member) for member in members)
        return Seen(tuple(known), tuple(holdings), int(clock[0]) * 1000 + int(clock[1]) // 1000)

    def claim(self, number: int, expected_epoch: int, owner: str) -> int | None:
        return self._set_owner(number, expected_epoch, epoch_after(expected_epoch), owner)

    def release(self, number: int, epoch: int) -> None:
        self._set_owner(number, epoch, epoch, "")

    def _set_owner(self, number: int, expected_epoch: int, epoch: int, owner: str) -> int | None:
        tag, arguments = store_tag(number), (expected_epoch, epoch - expected_epoch, owner)
        if self._ask_for(tag, lambda client: self._claiming([f"{tag}:fence"], arguments, client)) is None:
            return None
        self._known[number] = epoch, owner
        return epoch

    def rename(self, number: int, epoch: int, store_id: str) -> bool:
        """Name and fence may lie on two nodes. If the store is claimed in between, nothing that is copied to it is
        finished any more, whatever it is called."""
        if self._fences([number])[number][0] != epoch:
            return False
        self._ask_for(_TAG, lambda client: client.lset(_STORES, number, store_id))
        return True

    def forget(self, member_id: str) -> None:
        self._ask_for(_TAG, lambda client: client.hdel(_MEMBERS, member_id))

    def peer_key(self) -> bytes:
        """Drawn only where there is none: a server that is full refuses to set what is there, too."""
        found: Any = self._ask_for(_TAG, lambda client: client.get(_PEER_KEY))
        if found is None:
            self._ask_for(_TAG, lambda client: client.set(_PEER_KEY, new_peer_key(), nx=True))
            found = self._ask_for(_TAG, lambda client: client.get(_PEER_KEY))
        return bytes(found)

    # --- fences, wherever they are -----------------------------------------------------------------------------------

    def _fences(self, numbers: Collection[int]) -> dict[int, Owned]:
        """Of these stores, without those whose node cannot be asked, unless none can: one question to each node, and a
        second one where a store has moved."""
        owned: dict[int, Owned] = {}
        failures: list[Exception] = []
        with self._answering():
            moved = self._read(numbers, owned, failures)
            still = self._read(moved, owned, failures)
            if (failures or still) and not owned:
                raise failures[0] if failures else RedisError("the nodes of this Redis Cluster name each other in turn")
        return owned

    def _read(self, numbers: Collection[int], owned: dict[int, Owned], failures: list[Exception]) -> list[int]:
        """Those that are elsewhere now, and it is known where."""
        moved = []
        for client, here in self._by_node(numbers).items():
            self.trips += 1
            for number, told in zip(here, _hold(client, here), strict=True):
                if isinstance(told, MovedError):
                    self._moved(store_tag(number), told)
                    moved.append(number)
                elif isinstance(told, Exception):
                    self._left_alone(store_tag(number), client)
                    failures.append(told)
                else:
                    owned[number] = int(told[0] or 0), (told[1] or b"").decode()
        return moved

    def _by_node(self, numbers: Collection[int]) -> dict[Redis, list[int]]:
        nodes: dict[Redis, list[int]] = {}
        for number in numbers:
            nodes.setdefault(self._at(store_tag(number)), []).append(number)
        return nodes


def _hold(client: Redis, numbers: list[int]) -> list[Any]:
    """Epoch and owner of each, or why they are not told."""
    try:
        with client.pipeline(transaction=False) as at_once:
            for number in numbers:
                at_once.hmget(f"{store_tag(number)}:fence", ["epoch", "owner"])
            return at_once.execute(raise_on_error=False)
    except (RedisError, OSError, ServerAway) as error:
        return [error] * len(numbers)
