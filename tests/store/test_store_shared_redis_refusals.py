"""What a store on Redis makes of what Redis says: weak settings and refusals, each as a sentence for an operator."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from redis.exceptions import ResponseError

from eventually import eventually
from servers import RedisServer as Redis
from servers import redis_server
from tallystick.local import free_port
from tallystick.store.kv.engine import Changes
from tallystick.store.shared.redis import RedisServer
from tallystick.store.shared.server import Fence, ServerAway

OWNER = "broker-1"


def put(*keys: bytes) -> Changes:
    changes = Changes()
    changes.keys["log"].update(dict.fromkeys(keys, b"v"))
    return changes


@contextlib.contextmanager
def store_at(url: str) -> Iterator[RedisServer]:
    with contextlib.closing(RedisServer(url, 1)) as store:
        yield store


def refusal(store: RedisServer, unit: int = 0) -> str:
    with pytest.raises(ServerAway) as refused:
        store.apply(1, unit, put(b"a"))
    return refused.value.reason


def test_a_redis_that_keeps_what_it_acknowledges_has_no_weaknesses() -> None:
    with redis_server(appendonly="yes", appendfsync="always") as server, store_at(server.url) as store:
        assert store.weaknesses() == []
        with contextlib.closing(server.connect()) as client:
            client.config_set("appendfsync", "everysec")
            client.config_set("no-appendfsync-on-rewrite", "yes")
            client.config_set("maxmemory-policy", "allkeys-lru")
            client.config_set("appendonly", "no")
            client.replicaof("127.0.0.1", free_port())
        found = store.weaknesses()
    for told, word in zip(
        found, ("appendonly", "appendfsync is everysec", "rewrite", "allkeys-lru", "a replica"), strict=True
    ):
        assert word in told


def test_a_redis_whose_settings_may_not_be_asked_for_is_weak() -> None:
    with redis_server() as server, contextlib.closing(server.connect()) as client:
        client.acl_setuser("guest", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-config"])
        with store_at(f"redis://guest:any@{server.host}:{server.port}/0") as store:
            (found,) = store.weaknesses()
            assert "may not be asked" in found


def test_a_redis_that_is_gone_is_not_weak_but_away() -> None:
    with store_at(f"redis://127.0.0.1:{free_port()}/0") as store, pytest.raises(ServerAway, match="refused"):
        store.weaknesses()


def test_each_refusal_says_what_to_do() -> None:
    with redis_server(save="3600 1") as server, store_at(server.url) as store:
        store.claim(OWNER)
        with contextlib.closing(server.connect()) as client:
            client.config_set("maxmemory", "1")
            assert "maxmemory is used up" in refusal(store)
            client.config_set("maxmemory", "0")
            client.config_set("min-replicas-to-write", "1")
            assert "min-replicas-to-write" in refusal(store)
            client.config_set("min-replicas-to-write", "0")
            client.replicaof("127.0.0.1", free_port())
            assert "is a replica" in refusal(store)
            client.replicaof("NO", "ONE")
            server.directory.chmod(0o500)
            client.bgsave()
            eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
            assert "cannot write to its disk" in refusal(store)
            server.directory.chmod(0o700)
            client.config_set("save", "")
        assert store.apply(1, 0, put(b"a"))
        server.kill()
        assert "refused" in refusal(store)


def test_where_redis_is_full_what_gives_room_is_still_done() -> None:
    with redis_server() as server, store_at(server.url) as store:
        store.claim(OWNER)
        assert store.apply(1, 0, put(b"a", b"b", b"c"))
        with contextlib.closing(server.connect()) as client:
            client.config_set("maxmemory", "1")
        trimmed, moved = Changes(), put(b"d")
        trimmed.ranges.append(("log", b"a", b"b"))
        moved.keys["log"][b"b"] = None
        assert store.apply(1, 1, trimmed)
        assert store.apply(1, 2, moved)
        assert [key for key, _ in store.page("log", b"", b"z", 10, 1_000, False)] == [b"c", b"d"]


def test_a_redis_that_is_held_up_says_so() -> None:
    with (
        redis_server(busy_reply_threshold="10") as server,
        store_at(server.url) as store,
        contextlib.closing(server.connect()) as client,
    ):
        store.claim(OWNER)
        endless = threading.Thread(target=loop_for_ever, args=(server,))
        endless.start()
        eventually(lambda: "held up" in away(store))
        client.script_kill()
        endless.join()


def loop_for_ever(server: Redis) -> None:
    with contextlib.closing(server.connect()) as client, pytest.raises(ResponseError, match="killed"):
        client.eval("while true do end", 0)


def away(store: RedisServer) -> str:
    """Why the server does not answer, if it does not."""
    try:
        store.fence()
    except ServerAway as error:
        return error.reason
    return ""


@pytest.mark.full
def test_a_redis_that_is_loading_says_so() -> None:
    with (
        redis_server(appendonly="yes", key_load_delay="300") as server,
        store_at(server.url) as store,
    ):
        store.claim(OWNER)
        with contextlib.closing(server.connect()) as client, client.pipeline(transaction=False) as much:
            for number in range(5_000):
                much.set(f"other {number}", number)
            much.execute()
        server.kill()
        waiting = threading.Thread(target=lambda: eventually(lambda: "still loading" in away(store)))
        waiting.start()
        server.start()
        waiting.join()
        assert store.fence() == Fence(1, 0, OWNER)
