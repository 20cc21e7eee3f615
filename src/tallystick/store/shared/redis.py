"""A store on Redis: of each area a hash for the values and a sorted set for the order of its keys.

All keys of a store have one hash tag: a Redis Cluster keeps a store on one node, and spreads the stores. A unit is one
script, which Redis runs as a whole and, with `appendfsync always`, answers when it is on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from redis import Redis
from redis.commands.core import Script
from redis.exceptions import NoScriptError, ResponseError

from tallystick.store.kv.engine import AREAS, Area, Changes, Found, Wanted
from tallystick.store.kv.keys import behind
from tallystick.store.shared.redis_link import NO_DATABASE, RedisLink, is_full, store_tag
from tallystick.store.shared.server import Fence, ServerAway

_WAIT_MS = 5_000  # for replicas
_IN_ONE_RUN = 4_000  # values: Lua hands at most 8,000 to a command

T = TypeVar("T")


class RedisServer(RedisLink):
    """One store on a Redis, or on a Redis Cluster: then on the node that the others send us to."""

    def __init__(self, url: str, store: int) -> None:
        super().__init__(url)
        self._apply, self._page, self._asking = map(self._script, ("apply", "page", "fence"))
        self._looking_up, self._claiming = map(self._script, ("look_up", "claim"))
        self._tag = store_tag(store)
        self._fence, self._ranges = f"{self._tag}:fence", f"{self._tag}:ranges"
        self._values: dict[Area, str] = {area: f"{self._tag}:{area}" for area in AREAS}
        self._order: dict[Area, str] = {area: f"{self._tag}:{area}:order" for area in AREAS}

    def _ask(self, question: Callable[[Redis], T]) -> T:
        return self._ask_for(self._tag, question)

    # --- the fence -------------------------------------------------------------------------------------------

    def create(self) -> None:
        """Keys come with what is put into them."""

    def fence(self) -> Fence | None:
        self._delete_ranges()
        epoch, unit, owner = self._surely(self._asking, [self._fence])
        return None if epoch is None else Fence(int(epoch), int(unit), owner.decode())

    def claim(self, owner: str) -> Fence:
        # Not MULTI: Redis refuses any command in it while its memory is full.
        epoch, unit = self._ask(lambda client: self._claiming([self._fence], ("", 1, owner), client))
        self._delete_ranges()
        return Fence(epoch, unit, owner)

    # --- looks -----------------------------------------------------------------------------------------------

    def look_up(self, wanted: Wanted) -> Found:
        asked = {area: list(keys) for area, keys in wanted.items() if keys}

        answers = self._ask(lambda client: self._values_of(asked, client)) if asked else []
        told = {
            area: dict(zip(keys, values, strict=True))
            for (area, keys), values in zip(asked.items(), answers, strict=True)
        }
        return {area: told.get(area, {}) for area in wanted}

    def _values_of(self, asked: Mapping[Area, Sequence[bytes]], client: Redis) -> list[Any]:
        """The values of several areas at one moment. MULTI is faster than a script if there are many keys, but Redis
        refuses even reads in it while its memory is full."""
        try:
            with client.pipeline(transaction=len(asked) > 1) as at_once:
                for area, keys in asked.items():
                    at_once.hmget(self._values[area], keys)
                return at_once.execute()
        except ResponseError as error:
            if not is_full(error):
                raise
        arguments: list[int | bytes] = []
        for keys in asked.values():
            arguments += (len(keys), *keys)
        found: list[Any] = self._looking_up([self._values[area] for area in asked], arguments, client)
        return found

    def page(
        self, area: Area, start: bytes, end: bytes, limit: int, max_bytes: int, backwards: bool
    ) -> list[tuple[bytes, bytes]]:
        low, high = b"[" + start, b"(" + end
        bounds = (high, low, "REV") if backwards else (low, high)
        keys = (self._values[area], self._order[area])
        flat = self._ask(lambda client: self._page(keys, (limit, max_bytes, *bounds), client))
        return list(zip(flat[::2], flat[1::2], strict=True))

    # --- writes ----------------------------------------------------------------------------------------------

    def apply(self, epoch: int, unit: int, changes: Changes) -> bool:
        ranges = [part for one in _spared(changes) for part in one]
        left = self._run(epoch, unit, len(ranges) // 3, *ranges, *_runs(changes))
        if left > 0:
            self._delete_ranges()
        return left >= 0

    def _delete_ranges(self) -> None:
        """What the script of a unit has left of its ranges, step by step: Redis answers others in between. The unit is
        complete in all else, and no key that is put later lies in them, because the next unit deletes them first."""
        while self._run():
            pass

    def _run(self, *args: Any) -> int:
        keys = [self._fence, self._ranges]
        for area in AREAS:
            keys += (self._values[area], self._order[area])
        left: int = self._surely(self._apply, keys, args)
        return left

    # --- replicas --------------------------------------------------------------------------------------------

    def _surely(self, script: Script, keys: list[str], args: Sequence[Any] = ()) -> Any:
        """Runs a script. What it has changed, and all that was changed before, is on as many replicas as are wanted."""
        return self._ask(lambda client: self._confirmed(client, script, keys, args))

    def _confirmed(self, client: Redis, script: Script, keys: list[str], args: Sequence[Any]) -> Any:
        if not self._replicas:
            return script(keys, args, client)
        try:
            told, confirmed = self._and_wait(client, script, keys, args)
        except NoScriptError:  # it was not run
            client.script_load(script.script)
            told, confirmed = self._and_wait(client, script, keys, args)
        if confirmed < self._replicas:
            raise ServerAway(f"{confirmed} of {self._replicas} replicas have confirmed a unit (wait_replicas)")
        return told

    def _and_wait(self, client: Redis, script: Script, keys: list[str], args: Sequence[Any]) -> list[Any]:
        """On one connection: what replicas confirm is what was changed through it."""
        with client.pipeline(transaction=False) as both:
            both.evalsha(script.sha, len(keys), *keys, *args)
            both.wait(self._replicas, _WAIT_MS)
            return both.execute()

    # --- the server itself -----------------------------------------------------------------------------------

    def weaknesses(self) -> list[str]:
        try:
            settings: dict[Any, Any] = self._ask(lambda client: client.config_get("*"))
        except ServerAway as error:
            if not isinstance(error.__cause__, ResponseError) or NO_DATABASE in str(error.__cause__):
                raise
            return [f"its settings may not be asked for, so nobody knows what it can lose: {error}"]
        role = self._ask(lambda client: client.info("replication"))["role"]
        return [*_weak_settings(settings), *([] if role == "master" else ["it is a replica, not a master"])]


def _spared(changes: Changes) -> Iterator[tuple[int, bytes, bytes]]:
    """The ranges without the keys that the same unit puts: whatever is left of them may be deleted later."""
    for area, start, end in changes.ranges:
        number = AREAS.index(area) + 1
        put = changes.keys[area].items()
        for key in sorted(key for key, value in put if value is not None and start <= key < end):
            yield number, start, key
            start = behind(key)
        yield number, start, end


def _runs(changes: Changes) -> list[Any]:
    """Deletions go first: where Redis is full, it refuses a script whose first change needs room."""
    runs: list[Any] = []
    for number, area in enumerate(AREAS, 1):
        _add_runs(runs, "delete", number, [key for key, value in changes.keys[area].items() if value is None])
    for number, area in enumerate(AREAS, 1):
        put = [pair for pair in changes.keys[area].items() if pair[1] is not None]
        _add_runs(runs, "put", number, [part for pair in put for part in pair])
    return runs


def _add_runs(runs: list[Any], kind: str, area: int, values: list[Any]) -> None:
    for place in range(0, len(values), _IN_ONE_RUN):
        run = values[place : place + _IN_ONE_RUN]
        runs += (kind, area, len(run))
        runs += run


def _weak_settings(settings: Mapping[str, str]) -> Iterator[str]:
    if settings.get("appendonly") != "yes":
        yield "appendonly is not yes: what was written since the last snapshot goes with the process"
    if settings.get("appendfsync") != "always":
        yield f"appendfsync is {settings.get('appendfsync')}, not always: a power cut takes back what was acknowledged"
    if settings.get("no-appendfsync-on-rewrite") == "yes":
        yield "no-appendfsync-on-rewrite is yes: while the log is rewritten, nothing is synced"
    if settings.get("maxmemory-policy", "").startswith("allkeys"):
        yield f"maxmemory-policy is {settings['maxmemory-policy']}: when memory runs out, keys are dropped"
