"""The barrier on a Redis Cluster: keys with one hash tag work, others are refused with words that help."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from redis import RedisCluster
from redis.asyncio import RedisCluster as AsyncRedisCluster

from servers import RedisServer, redis_server
from tallystick.barrier.redis import AsyncRedisBarrier, KeysApart, RedisBarrier, RedisDecider


@pytest.fixture(scope="module")
def node() -> Iterator[RedisServer]:
    """A cluster of one node, which holds all slots; it refuses keys in different ones like any other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        bus = str(probe.getsockname()[1])
    with redis_server(cluster_enabled="yes", cluster_port=bus) as server:
        with contextlib.closing(server.connect(decode_responses=True)) as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                time.sleep(0.02)
        yield server


def test_keys_with_one_hash_tag_are_served(node: RedisServer) -> None:
    with contextlib.closing(RedisCluster(host=node.host, port=node.port)) as client:
        client.set("{shop}stock", 1)
        assert RedisBarrier(client, "{shop}g1").adjust("{shop}stock", -1) == "done"
        assert RedisBarrier(client, "{shop}g1").adjust("{shop}stock", -1) == "duplicate"
        assert (RedisBarrier(client, "{shop}g1").decide(), client.get("{shop}stock")) == ("committed", b"0")


def test_a_prefix_brings_any_gid_to_its_counter(node: RedisServer) -> None:
    with contextlib.closing(RedisCluster(host=node.host, port=node.port)) as client:
        client.set("{shop}other", 1)
        assert RedisBarrier(client, "g2", prefix="{shop}").adjust("{shop}other", -1) == "done"
        assert RedisDecider(client, prefix="{shop}").decide("g2") == "committed"


def test_keys_apart_are_refused_before_anything_is_sent(node: RedisServer) -> None:
    with contextlib.closing(RedisCluster(host=node.host, port=node.port)) as client:
        client.set("stock", 1)
        with pytest.raises(KeysApart, match=r"g3-00-msg-01, stock are in different slots.*one hash tag"):
            RedisBarrier(client, "g3").adjust("stock", -1)
        assert client.get("stock") == b"1"


async def test_the_async_cluster_client_alike(node: RedisServer) -> None:
    client = AsyncRedisCluster(host=node.host, port=node.port)
    try:
        await client.set("{cafe}stock", 1)
        assert await AsyncRedisBarrier(client, "{cafe}g1").adjust("{cafe}stock", -1) == "done"
        assert await AsyncRedisBarrier(client, "{cafe}g1").decide() == "committed"
        with pytest.raises(KeysApart):
            await AsyncRedisBarrier(client, "g1").adjust("{cafe}stock", -1)
    finally:
        await client.aclose()
