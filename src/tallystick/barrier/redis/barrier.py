"""A barrier whose truth is a key in Redis: the effect and its mark are one Lua script, so both happen or neither.

    barrier = RedisBarrier(redis, gid)
    barrier.adjust("stock:42", -1)      # "done", or "duplicate" if it was done before; raises NotEnough

The check-back runs `decide()`: a gid without a mark gets `rollback`, and an effect that comes later finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis import Redis, RedisCluster
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.crc import key_slot
from redis.exceptions import NoScriptError

from tallystick.barrier.branch_key import FIRST_BARRIER, MESSAGE_BRANCH, MESSAGE_OP, Branch
from tallystick.barrier.errors import UnsupportedConnection
from tallystick.barrier.redis import scripts
from tallystick.barrier.redis.errors import KeysApart, NotEnough, Refused
from tallystick.barrier.redis.scripts import Call, Effect, Ran, Value
from tallystick.core.errors import InvalidRequest
from tallystick.core.ops import Outcome

KEEP_SECONDS = 7 * 24 * 3600
LEAST_SECONDS = 3600
"""A mark that has gone reads as `rolled_back`. A broker asks for several minutes even if all is well."""

# Lua counts exactly up to here; the script says the same of what the counters hold.
_MOST = 2**53 - 1


class _Barrier:
    """What both kinds of barrier know: names, keys and meanings."""

    def __init__(
        self,
        gid: str,
        branch_id: str,
        op: str,
        barrier_id: str,
        *,
        expire: int,
        prefix: str,
        cluster: bool,
    ) -> None:
        self.branch = Branch(gid, branch_id, op, barrier_id)
        self._expire = checked_expire(expire)
        self._prefix = prefix
        self._cluster = cluster
        self._used_for: object = None

    @property
    def key(self) -> str:
        """The key that holds the mark."""
        return scripts.barrier_key(self._prefix, self.branch)

    def _adjustment(self, amounts: Mapping[str, int]) -> Call:
        for key, amount in amounts.items():
            if not isinstance(amount, int) or isinstance(amount, bool) or abs(amount) > _MOST:
                raise InvalidRequest(
                    f"amount of {key}: {amount!r} is not an integer that Lua can count with", field="amount"
                )
        if not amounts:
            raise InvalidRequest("amounts: at least one counter", field="amounts")
        return self._guarded(scripts.adjustment(), list(amounts), list(amounts.values()))

    def _guarded(self, script: str, keys: Sequence[str], args: Sequence[Value]) -> Call:
        self._use_for((script, tuple(keys), tuple(args)))
        return self._checked(
            scripts.guarded_call(self._prefix, self.branch, self._expire, script, keys, args),
        )

    def _use_for(self, effect: object) -> None:
        """One mark stands for one effect: a second, different one would be taken for a duplicate and never happen."""
        if self._used_for not in (None, effect):
            raise InvalidRequest(
                f"the barrier of {self.branch.gid} has been used for another effect. Put both into one script with "
                "run(), or both counters into one adjust_all()",
                field="barrier_id",
            )
        self._used_for = effect

    def _deciding(self) -> Call:
        return scripts.deciding_call(self._prefix, self.branch, self._expire)

    def _checked(self, call: Call) -> Call:
        if self._cluster and len({key_slot(key.encode()) for key in call.keys}) > 1:
            raise KeysApart(
                f"the keys {', '.join(dict.fromkeys(call.keys))} are in different slots of the cluster. Give them "
                "one hash tag: in the gid ('{shop}...'), or prefix='{shop}' for the barrier and its check-back, with "
                "counters like '{shop}stock'"
            )
        return call

    def _adjusted(self, amounts: Mapping[str, int], reply: Any) -> Effect:
        try:
            return scripts.ran(self.branch, reply).effect
        except Refused as refused:
            key = refused.detail
            raise NotEnough(key, amounts.get(key, 0)) from None


class RedisBarrier(_Barrier):
    """Over `redis.Redis` or `redis.RedisCluster`.

    The four names are dtm's; those of the default are the local transaction of a message. `expire` is how many seconds
    the mark is kept: longer than any check-back may be late. `prefix` goes before the gid in the barrier's keys, for
    clusters whose hash tag is not in the gid.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        gid: str,
        branch_id: str = MESSAGE_BRANCH,
        op: str = MESSAGE_OP,
        barrier_id: str = FIRST_BARRIER,
        *,
        expire: int = KEEP_SECONDS,
        prefix: str = "",
    ) -> None:
        _refuse(client, (AsyncRedis, AsyncRedisCluster), "AsyncRedisBarrier")
        cluster = isinstance(client, RedisCluster)
        super().__init__(gid, branch_id, op, barrier_id, expire=expire, prefix=prefix, cluster=cluster)
        self._client = client

    def adjust(self, key: str, amount: int) -> Effect:
        """Add `amount` to a counter that never falls below zero, once.

        Returns `done`; `duplicate` if it was done before; `skipped` if it must not be done (it takes back what never
        happened, or was taken back before it came). Raises `NotEnough` if the counter is missing or would fall below
        zero, and `AlreadyDecided` if a check-back has said `rolled_back`; nothing is changed then.
        """
        return self.adjust_all({key: amount})

    def adjust_all(self, amounts: Mapping[str, int]) -> Effect:
        """The same for several counters: all of them, or none."""
        return self._adjusted(amounts, self._call(self._adjustment(amounts)))

    def run(self, script: str, keys: Sequence[str] = (), args: Sequence[Value] = ()) -> Ran:
        """Run any Lua effect once. It sees `KEYS` and `ARGV` as given here.

        It refuses with `return {refused = 'why'}`, before it has written anything: that raises `Refused`. Redis does
        not undo a script that fails half-way, so an effect checks first and writes then.
        """
        return scripts.ran(self.branch, self._call(self._guarded(script, keys, args)))

    def decide(self) -> Outcome:
        """The check-back: `committed` if the effect was done; else `rolled_back`, and it never will be."""
        return scripts.decided(self.branch, self._call(self._deciding()))

    def _call(self, call: Call) -> Any:
        try:
            return self._client.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
        except NoScriptError:  # a server that was started anew, or another node
            return self._client.eval(call.script.text, len(call.keys), *call.keys, *call.args)


class AsyncRedisBarrier(_Barrier):
    """The same over `redis.asyncio.Redis` or `redis.asyncio.RedisCluster`."""

    def __init__(
        self,
        client: AsyncRedis | AsyncRedisCluster,
        gid: str,
        branch_id: str = MESSAGE_BRANCH,
        op: str = MESSAGE_OP,
        barrier_id: str = FIRST_BARRIER,
        *,
        expire: int = KEEP_SECONDS,
        prefix: str = "",
    ) -> None:
        _refuse(client, (Redis, RedisCluster), "RedisBarrier")
        cluster = isinstance(client, AsyncRedisCluster)
        super().__init__(gid, branch_id, op, barrier_id, expire=expire, prefix=prefix, cluster=cluster)
        self._client = client

    async def adjust(self, key: str, amount: int) -> Effect:
        """As `RedisBarrier.adjust`."""
        return await self.adjust_all({key: amount})

    async def adjust_all(self, amounts: Mapping[str, int]) -> Effect:
        """As `RedisBarrier.adjust_all`."""
        return self._adjusted(amounts, await self._call(self._adjustment(amounts)))

    async def run(self, script: str, keys: Sequence[str] = (), args: Sequence[Value] = ()) -> Ran:
        """As `RedisBarrier.run`."""
        return scripts.ran(self.branch, await self._call(self._guarded(script, keys, args)))

    async def decide(self) -> Outcome:
        """As `RedisBarrier.decide`."""
        return scripts.decided(self.branch, await self._call(self._deciding()))

    async def _call(self, call: Call) -> Any:
        try:
            return await self._client.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
        except NoScriptError:
            return await self._client.eval(call.script.text, len(call.keys), *call.keys, *call.args)


def _refuse(client: object, kinds: tuple[type, ...], right: str) -> None:
    """Before anything is sent: its answer could not be read, and the effect would have happened."""
    if isinstance(client, kinds):
        raise UnsupportedConnection(f"{type(client).__module__}.{type(client).__name__} belongs to {right}")


def checked_expire(seconds: int) -> int:
    """A time that marks may be kept."""
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < LEAST_SECONDS:
        raise InvalidRequest(
            f"expire: {seconds!r} is not a number of seconds of at least {LEAST_SECONDS}. A mark that has gone reads "
            "as rolled back, so it must outlive every check-back; the default is 7 days",
            field="expire",
        )
    return seconds
