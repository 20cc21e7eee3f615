"""A cache in Redis that a slow reader cannot fill with what is no longer true.

An entry is a hash: `value`; `stale` once the row has changed; and, while somebody reads the row to fill it, `owner` and
`until` (the lock, and when it ends). Whoever fills an entry must still be its owner. `delete` takes the lock away, so a
reader that read the row before the change has lost it by the time it comes to write.

Times are Redis' own, so the clocks of the services do not matter.
"""

import json
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import redis

TAKE = """
local value, stale, owner, ends = unpack(redis.call('HMGET', KEYS[1], 'value', 'stale', 'owner', 'until'))
if value and not stale then return {'fresh', value} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if owner and tonumber(ends) > now then return {'wait', value} end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'until', now + ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return {'load', value}
"""

PUT = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'value', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""

DELETE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HDEL', KEYS[1], 'owner', 'until')
redis.call('HSET', KEYS[1], 'stale', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

POLL_SECONDS = 0.01

Load = Callable[[], Any]
"""Reads the row, from the database itself and not from a replica that may lag behind."""


class Times(NamedTuple):
    """In seconds. A reader that is slower than `lock` loses its right to fill the entry; it does no harm."""

    lock: float = 3.0
    keep: float = 10.0  # how long a stale value is good enough for weak reads
    live: float = 3600.0


class Cache:
    """`fetch` reads through it; `delete` is for whoever changes the row."""

    def __init__(self, client: redis.Redis, times: Times = Times()) -> None:  # noqa: B008 - never changed
        self._client, self._times = client, times
        self._take, self._put, self._delete = (client.register_script(one) for one in (TAKE, PUT, DELETE))
        self._background = ThreadPoolExecutor(4, "fill")

    def fetch(self, key: str, load: Load, *, strong: bool = False) -> Any:
        """The value, from the cache or from `load`.

        A weak read takes an old value if there is one, and has the entry filled in the background. A strong read waits.
        What it returns is never older than the last change that was confirmed before the read began, because an entry
        becomes stale before a change is confirmed.
        """
        owner = secrets.token_hex(8)
        deadline = time.monotonic() + self._times.lock
        while True:
            state, found = self._take([key], [owner, _ms(self._times.lock)])
            if state == "fresh":
                return json.loads(found)
            good_enough = found is not None and not strong
            if state == "load" and not good_enough:
                return self._fill(key, owner, load)
            if state == "load":
                self._background.submit(self._fill, key, owner, load)
            if good_enough:
                return json.loads(found)
            if time.monotonic() > deadline:
                return load()  # whoever has the lock is slow or dead; the row itself is always right
            time.sleep(POLL_SECONDS)

    def _fill(self, key: str, owner: str, load: Load) -> Any:
        value = load()
        # Refused if the row has changed since we took the lock. What we have read was still true when this read began.
        self._put([key], [owner, json.dumps(value), _ms(self._times.live)])
        return value

    def delete(self, key: str) -> None:
        """The row has changed: from here on nothing that was read before counts. To do it twice does no harm."""
        self._delete([key], [_ms(self._times.keep)])

    def peek(self, key: str) -> Any:
        """What a reader would be told without waiting: the fresh value, or None."""
        value, stale = self._client.hmget(key, "value", "stale")
        return None if value is None or stale is not None else json.loads(value)

    def close(self) -> None:
        self._background.shutdown()


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
