"""What a store on Redis has for itself: scripts, ranges deleted in steps, the nodes of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from cutting_proxy import Cut, cutting_proxy
from eventually import eventually
from servers import RedisServer as Redis
from servers import redis_server
from shared_stores import new_number
from tallystick.local import free_port
from tallystick.store.kv.engine import Changes
from tallystick.store.shared.redis import RedisServer
from tallystick.store.shared.server import Fence, ServerAway

MANY = 21_000  # more than one step deletes
OWNER = "broker-1"


def key(number: int) -> bytes:
    return b"%06d" % number


def put(*keys: bytes, value: bytes = b"v") -> Changes:
    changes = Changes()
    changes.keys["log"].update(dict.fromkeys(keys, value))
    return changes


def everything(store: RedisServer) -> list[bytes]:
    return [found for found, _ in store.page("log", b"", b"\xff", 100_000, 1 << 30, False)]


@contextlib.contextmanager
def losing_scripts(redis: Redis, number: int) -> Iterator[tuple[RedisServer, list[bytes]]]:
    """A way to the store on which the answers to scripts are lost, and all that was sent on it."""
    sent: list[bytes] = []

    def choose(data: bytes) -> Cut:
        sent.append(data)
        return "after" if b"EVALSHA" in data else "no"

    with (
        cutting_proxy(redis.port, choose) as proxy,
        contextlib.closing(RedisServer(f"redis://127.0.0.1:{proxy.port}/0", number)) as there,
    ):
        yield there, sent


@pytest.fixture
def number() -> int:
    return new_number()


@pytest.fixture
def store(redis: Redis, number: int) -> Iterator[RedisServer]:
    with contextlib.closing(RedisServer(redis.url, number)) as made:
        made.claim(OWNER)
        yield made


@pytest.fixture
def many(store: RedisServer) -> tuple[RedisServer, Changes]:
    """A store that holds many keys, and a unit that deletes all but the last of them and puts one among them."""
    assert store.apply(1, 0, put(*map(key, range(MANY + 1))))
    changes = put(key(MANY // 2), value=b"new")
    changes.ranges.append(("log", key(0), key(MANY)))
    return store, changes


LEFT = [key(MANY // 2), key(MANY)]


# --- ranges ----------------------------------------------------------------------------------------------------------


def test_a_long_range_is_deleted_as_a_whole_but_for_what_its_unit_puts(many: tuple[RedisServer, Changes]) -> None:
    store, changes = many
    assert store.apply(1, 1, changes)
    assert everything(store) == LEFT
    assert store.look_up({"log": (key(0), key(MANY // 2))}) == {"log": {key(0): None, key(MANY // 2): b"new"}}


@pytest.fixture
def cut_off(many: tuple[RedisServer, Changes], number: int, redis: Redis) -> RedisServer:
    """The same, but the writer is cut off when it is about to go on with the range."""
    store, changes = many
    with losing_scripts(redis, number) as (there, _), pytest.raises(ServerAway):
        there.apply(1, 1, changes)
    assert len(everything(store)) > len(LEFT)
    return store


def test_the_next_unit_first_deletes_what_a_cut_writer_has_left(cut_off: RedisServer) -> None:
    assert cut_off.apply(1, 2, put(key(1)))
    assert everything(cut_off) == sorted([*LEFT, key(1)])


def test_who_asks_for_the_fence_sees_nothing_of_a_deleted_range(cut_off: RedisServer) -> None:
    assert cut_off.fence() == Fence(1, 2, OWNER)
    assert everything(cut_off) == LEFT


def test_the_next_owner_sees_nothing_of_a_deleted_range(cut_off: RedisServer) -> None:
    assert cut_off.claim("broker-2") == Fence(2, 2, "broker-2")
    assert everything(cut_off) == LEFT


# --- scripts ---------------------------------------------------------------------------------------------------------


def test_a_redis_that_has_forgotten_the_scripts_is_sent_them_again(store: RedisServer, redis: Redis) -> None:
    assert store.apply(1, 0, put(b"a"))
    with contextlib.closing(redis.connect()) as client:
        client.script_flush()
    assert store.apply(1, 1, put(b"b"))
    assert everything(store) == [b"a", b"b"]


def test_a_unit_whose_answer_is_lost_is_sent_once(store: RedisServer, number: int, redis: Redis) -> None:
    assert store.apply(1, 0, put(b"a"))  # Redis knows the script
    with losing_scripts(redis, number) as (there, sent):
        with pytest.raises(ServerAway):
            there.apply(1, 1, put(b"b"))
        assert b"".join(sent).count(b"EVALSHA") == 1
    assert store.fence() == Fence(1, 2, OWNER)


def test_a_unit_may_be_larger_than_what_lua_hands_to_a_command(store: RedisServer) -> None:
    changes = put(*map(key, range(9_000)))
    changes.keys["index"].update({key(number): b"" for number in range(9_000)})
    assert store.apply(1, 0, changes)
    changes = Changes()
    changes.keys["log"].update(dict.fromkeys(map(key, range(1, 9_000)), None))
    assert store.apply(1, 1, changes)
    assert everything(store) == [key(0)]
    assert len(store.page("index", b"", b"\xff", 10_000, 1 << 30, False)) == 9_000


# --- a cluster -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def cluster_of_two() -> Iterator[tuple[Redis, Redis]]:
    settings = {"cluster_enabled": "yes", "cluster_require_full_coverage": "yes"}
    with (
        redis_server(**settings, cluster_port=str(free_port())) as first,
        redis_server(**settings, cluster_port=str(bus := free_port())) as second,
        contextlib.closing(first.connect()) as one,
        contextlib.closing(second.connect()) as other,
    ):
        one.execute_command("CLUSTER ADDSLOTSRANGE", 0, 8191)
        other.execute_command("CLUSTER ADDSLOTSRANGE", 8192, 16383)
        one.execute_command("CLUSTER MEET", second.host, second.port, bus)
        for client in (one, other):
            eventually(lambda client=client: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield first, second


@pytest.mark.full
def test_a_cluster_spreads_the_stores_and_each_is_found_from_any_node() -> None:
    with cluster_of_two() as nodes:
        for number in range(8):
            with contextlib.closing(RedisServer(nodes[number % 2].url, number)) as store:
                store.claim(OWNER)
                changes = put(b"a", b"b")
                changes.keys["index"][b"c"] = b"d"
                assert store.apply(1, 0, changes)
        for number in range(8):
            with contextlib.closing(RedisServer(nodes[0].url, number)) as store:
                assert store.fence() == Fence(1, 1, OWNER)
                assert everything(store) == [b"a", b"b"]
                assert store.look_up({"log": [b"a"], "index": [b"c"]}) == {"log": {b"a": b"v"}, "index": {b"c": b"d"}}
                store.cut()
                assert store.apply(1, 1, put(b"e"))
        held = []
        for node in nodes:
            with contextlib.closing(node.connect()) as client:
                held.append(client.dbsize())
        assert min(held) > 0
