"""The barrier on Redis: what each call does, returns and leaves behind, over sync and async clients."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ReadOnlyError, ResponseError
from redis_support import SHOPS, Shop, sync_shop

from servers import RedisServer, redis_server
from tallystick.barrier import AlreadyDecided, UnsupportedConnection
from tallystick.barrier.redis import (
    KEEP_SECONDS,
    LEAST_SECONDS,
    AsyncRedisBarrier,
    AsyncRedisDecider,
    NotEnough,
    RedisBarrier,
    RedisDecider,
    Refused,
    UnknownMark,
)
from tallystick.core.errors import InvalidRequest


@pytest.fixture(params=list(SHOPS))
def shop(request: pytest.FixtureRequest, redis: RedisServer) -> Iterator[Shop]:
    with SHOPS[request.param](redis) as shop:
        shop.left = 10
        yield shop


# Adjusting


def test_an_effect_and_its_mark_are_made_together(shop: Shop, gid: str) -> None:
    assert shop.adjust(gid, -3) == "done"
    assert (shop.left, shop.mark(gid)) == (7, b"op")


def test_the_mark_has_dtms_name_and_is_kept_for_the_time_given(shop: Shop, gid: str) -> None:
    shop.adjust(gid, -1, expire=LEAST_SECONDS)
    assert LEAST_SECONDS - 60 < int(shop.redis.ttl(f"{gid}-00-msg-01")) <= LEAST_SECONDS
    shop.adjust(gid + "x", -1)
    assert KEEP_SECONDS - 60 < int(shop.redis.ttl(f"{gid}x-00-msg-01")) <= KEEP_SECONDS


def test_the_retry_of_the_last_unit_is_a_duplicate_and_no_failure(shop: Shop, gid: str) -> None:
    shop.left = 1
    assert shop.adjust(gid, -1) == "done"
    assert shop.adjust(gid, -1) == "duplicate"
    assert (shop.left, shop.decide(gid)) == (0, "committed")


def test_the_retry_is_a_duplicate_even_if_the_counter_has_gone(shop: Shop, gid: str) -> None:
    shop.adjust(gid, -1)
    shop.redis.delete(shop.stock)
    assert shop.adjust(gid, -1) == "duplicate"


@pytest.mark.parametrize("units", [None, 0, 2])
def test_too_little_is_not_enough_and_leaves_no_mark(shop: Shop, gid: str, units: int | None) -> None:
    shop.redis.delete(shop.stock)
    if units is not None:
        shop.left = units
    with pytest.raises(NotEnough, match="nothing was changed") as refused:
        shop.adjust(gid, -3)
    assert refused.value.key == shop.stock
    assert (shop.redis.get(shop.stock), shop.mark(gid)) == (None if units is None else str(units).encode(), None)
    shop.left = 3  # it may be tried again: nothing has been decided
    assert shop.adjust(gid, -3) == "done"


def test_adding_to_a_counter_below_zero_is_no_failure(shop: Shop, gid: str) -> None:
    shop.left = -5
    assert shop.adjust(gid, 3) == "done"
    assert shop.left == -2


def test_an_adjusted_counter_keeps_its_time_to_live(shop: Shop, gid: str) -> None:
    shop.redis.expire(shop.stock, 500)
    shop.adjust(gid, -1)
    assert int(shop.redis.ttl(shop.stock)) > 400


def test_several_counters_change_together_or_not_at_all(shop: Shop, gid: str) -> None:
    other = shop.stock + "-other"
    shop.redis.set(other, 1)
    with pytest.raises(NotEnough) as refused:
        shop.adjust_all(gid, {shop.stock: -1, other: -2})
    assert (refused.value.key, shop.left, shop.redis.get(other), shop.mark(gid)) == (other, 10, b"1", None)
    assert shop.adjust_all(gid, {shop.stock: -1, other: -1}) == "done"
    assert (shop.left, shop.redis.get(other)) == (9, b"0")


@pytest.mark.parametrize(
    "junk", ["", "many", "1.5", " 7", "007", "-0", "1e3", "0x10", "9007199254740992", "99999999999999999999"]
)
def test_a_counter_that_is_no_exact_integer_is_an_error_and_no_outcome(shop: Shop, gid: str, junk: str) -> None:
    shop.redis.set(shop.stock, junk)
    with pytest.raises(ResponseError, match="no integer that can be counted with"):
        shop.adjust(gid, -1)
    assert (shop.redis.get(shop.stock), shop.mark(gid)) == (junk.encode(), None)


def test_a_counter_at_the_edge_of_exactness_is_counted(shop: Shop, gid: str) -> None:
    shop.left = 2**53 - 1
    with pytest.raises(ResponseError, match="no integer that can be counted with"):
        shop.adjust(gid, 1)
    assert shop.adjust(gid, -1) == "done"
    assert shop.left == 2**53 - 2


def test_a_counter_of_another_type_is_an_error_and_no_outcome(shop: Shop, gid: str) -> None:
    shop.redis.delete(shop.stock)
    shop.redis.rpush(shop.stock, 1)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        shop.adjust(gid, -1)
    assert shop.mark(gid) is None


@pytest.mark.parametrize("amount", [1.5, "1", True, 2**53, None])
def test_an_amount_that_is_no_integer_is_refused_before_redis_is_asked(shop: Shop, gid: str, amount: int) -> None:
    with pytest.raises(InvalidRequest, match="amount"):
        shop.barrier(gid)._adjustment({shop.stock: amount})
    assert shop.mark(gid) is None


def test_one_barrier_is_for_one_effect(redis: RedisServer, gid: str) -> None:
    with contextlib.closing(redis.connect()) as client:
        client.mset({f"{gid}-a": 5, f"{gid}-b": 5})
        barrier = RedisBarrier(client, gid)
        assert [barrier.adjust(f"{gid}-a", -1), barrier.adjust(f"{gid}-a", -1)] == ["done", "duplicate"]
        with pytest.raises(InvalidRequest, match="another effect"):
            barrier.adjust(f"{gid}-b", -1)


# Deciding


def test_a_check_back_that_comes_first_rolls_back_for_good(shop: Shop, gid: str) -> None:
    assert shop.decide(gid) == "rolled_back"
    assert (shop.mark(gid), int(shop.redis.ttl(f"{gid}-00-msg-01")) > KEEP_SECONDS - 60) == (b"rollback", True)
    with pytest.raises(AlreadyDecided) as decided:
        shop.adjust(gid, -1)
    assert (decided.value.outcome, shop.left, shop.decide(gid)) == ("rolled_back", 10, "rolled_back")


def test_a_check_back_after_the_effect_says_committed(shop: Shop, gid: str) -> None:
    shop.adjust(gid, -1)
    assert [shop.decide(gid), shop.decide(gid)] == ["committed", "committed"]


def test_a_mark_that_has_expired_reads_as_rolled_back(shop: Shop, gid: str) -> None:
    """Nothing can tell it from one that never was: that is why marks are kept for days."""
    shop.adjust(gid, -1)
    shop.redis.pexpire(f"{gid}-00-msg-01", 1)
    while shop.mark(gid) is not None:
        pass
    assert (shop.decide(gid), shop.left) == ("rolled_back", 9)


@pytest.mark.parametrize("seconds", [0, -1, 60, LEAST_SECONDS - 1, 86400.0, True, None])
def test_a_time_too_short_for_check_backs_is_refused(redis: RedisServer, gid: str, seconds: int) -> None:
    with contextlib.closing(redis.connect()) as client:
        with pytest.raises(InvalidRequest, match="must outlive every check-back"):
            RedisBarrier(client, gid, expire=seconds)
        with pytest.raises(InvalidRequest, match="must outlive every check-back"):
            RedisDecider(client, expire=seconds)


def test_a_mark_that_nobody_writes_tells_nothing(shop: Shop, gid: str) -> None:
    shop.redis.set(f"{gid}-00-msg-01", "committed?")
    with pytest.raises(UnknownMark, match="committed\\?"):
        shop.decide(gid)
    with pytest.raises(UnknownMark):
        shop.adjust(gid, -1)
    assert shop.left == 10


def test_a_mark_of_another_type_is_an_error_and_no_outcome(shop: Shop, gid: str) -> None:
    shop.redis.rpush(f"{gid}-00-msg-01", "op")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        shop.decide(gid)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        shop.adjust(gid, -1)
    assert shop.left == 10


def test_only_the_local_transaction_of_a_message_can_be_decided(redis: RedisServer, gid: str) -> None:
    with contextlib.closing(redis.connect()) as client:
        for names in [("01", "action"), ("00", "msg", "02"), ("01",)]:
            with pytest.raises(InvalidRequest, match="decide"):
                RedisBarrier(client, gid, *names).decide()


def test_a_prefix_keeps_barriers_apart(shop: Shop, gid: str) -> None:
    assert shop.adjust(gid, -1, prefix="{shop}") == "done"
    assert shop.redis.get(f"{{shop}}{gid}-00-msg-01") == b"op"
    assert shop.decide(gid, prefix="{shop}") == "committed"
    assert shop.decide(gid) == "rolled_back"


# Branches


def test_a_branch_is_done_once(shop: Shop, gid: str) -> None:
    assert [shop.adjust(gid, -1, "01", "action") for _ in range(3)] == ["done", "duplicate", "duplicate"]
    assert (shop.left, shop.mark(gid, "01", "action", "01")) == (9, b"op")


@pytest.mark.parametrize(("op", "reverse"), [("try", "cancel"), ("action", "compensate"), ("action", "rollback")])
def test_what_was_done_is_taken_back_once(shop: Shop, gid: str, op: str, reverse: str) -> None:
    shop.adjust(gid, -1, "01", op)
    assert [shop.adjust(gid, 1, "01", reverse) for _ in range(2)] == ["done", "duplicate"]
    assert shop.left == 10


@pytest.mark.parametrize(("op", "reverse"), [("try", "cancel"), ("action", "compensate"), ("action", "rollback")])
def test_what_never_happened_is_not_taken_back_and_never_happens(shop: Shop, gid: str, op: str, reverse: str) -> None:
    assert shop.adjust(gid, 1, "01", reverse) == "skipped"
    assert shop.adjust(gid, -1, "01", op) == "skipped"
    assert shop.adjust(gid, 1, "01", reverse) == "duplicate"
    assert (shop.left, shop.mark(gid, "01", op, "01")) == (10, b"rollback")


# Any effect

TAKE_SEAT = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    return {refused = 'taken'}
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HLEN', KEYS[1]) -- no line break after this"""


def test_any_effect_runs_once_and_sees_its_own_keys_and_arguments(shop: Shop, gid: str) -> None:
    hall = f"hall-{gid}"
    assert shop.run(gid, TAKE_SEAT, [hall], ["a1", "ann"]) == ("done", 1)
    assert shop.run(gid, TAKE_SEAT, [hall], ["a1", "ann"]) == ("duplicate", None)
    assert shop.redis.hgetall(hall) == {b"a1": b"ann"}


def test_an_effect_may_refuse_and_leaves_no_mark(shop: Shop, gid: str) -> None:
    hall = f"hall-{gid}"
    shop.redis.hset(hall, "a1", "bob")
    with pytest.raises(Refused, match="taken"):
        shop.run(gid, TAKE_SEAT, [hall], ["a1", "ann"])
    assert (shop.mark(gid), shop.decide(gid)) == (None, "rolled_back")


@pytest.mark.parametrize(
    "script",
    [
        "error('on purpose')",
        "return redis.call('INCR', KEYS[1])",
        "return redis.pcall('INCR', KEYS[1])",
        "this is not Lua",
    ],
)
def test_an_effect_that_fails_is_an_error_and_leaves_no_mark(shop: Shop, gid: str, script: str) -> None:
    shop.redis.rpush(f"list-{gid}", 1)
    with pytest.raises(ResponseError):
        shop.run(gid, script, [f"list-{gid}"])
    assert shop.mark(gid) is None


def test_an_effect_after_a_check_back_is_not_run(shop: Shop, gid: str) -> None:
    shop.decide(gid)
    with pytest.raises(AlreadyDecided):
        shop.run(gid, "return redis.call('SET', KEYS[1], 'x')", [f"never-{gid}"])
    assert shop.redis.get(f"never-{gid}") is None


def test_an_effect_without_an_answer_is_done(shop: Shop, gid: str) -> None:
    assert shop.run(gid, "local nothing = 1") == ("done", None)


def test_a_script_with_a_shebang_is_refused(shop: Shop, gid: str) -> None:
    with pytest.raises(InvalidRequest, match="#!lua"):
        shop.barrier(gid)._guarded("#!lua\nreturn 1", [], [])


# Servers and clients


def test_a_server_that_forgot_the_scripts_gets_them_again(shop: Shop, gid: str) -> None:
    shop.adjust(gid, -1)
    shop.decide(gid)
    shop.redis.script_flush()
    assert (shop.adjust(gid, -1), shop.decide(gid)) == ("duplicate", "committed")
    shop.redis.script_flush()
    assert (shop.decide(gid), shop.adjust(gid + "x", -1)) == ("committed", "done")


@pytest.fixture(scope="module")
def own_server() -> Iterator[RedisServer]:
    """One whose settings are changed."""
    with redis_server() as server:
        yield server


def test_a_replica_never_tells_an_outcome(redis: RedisServer, own_server: RedisServer, gid: str) -> None:
    with sync_shop(own_server) as shop:
        shop.left = 5
        shop.redis.replicaof("127.0.0.1", "1")
        try:
            with pytest.raises(ResponseError) as deduction:
                shop.adjust(gid, -1)
            with pytest.raises(ResponseError) as decision:
                shop.decide(gid)
            for error in (deduction.value, decision.value):
                assert isinstance(error, ReadOnlyError) or "READONLY" in str(error) or "read only" in str(error)
        finally:
            shop.redis.replicaof("NO", "ONE")
        assert (shop.mark(gid), shop.left) == (None, 5)


def test_a_full_server_never_tells_an_outcome(own_server: RedisServer, gid: str) -> None:
    with sync_shop(own_server) as shop:
        shop.left = 5
        shop.adjust(gid + "x", -1)  # known scripts need no memory
        shop.redis.config_set("maxmemory", 1)
        try:
            with pytest.raises(ResponseError, match=r"OOM|maxmemory"):
                shop.adjust(gid, -1)
            with pytest.raises(ResponseError, match=r"OOM|maxmemory"):
                shop.decide(gid)
        finally:
            shop.redis.config_set("maxmemory", 0)
        assert (shop.mark(gid), shop.left) == (None, 4)


def test_a_client_of_the_other_kind_is_refused(redis: RedisServer, gid: str) -> None:
    with contextlib.closing(redis.connect()) as client:
        with pytest.raises(UnsupportedConnection, match="belongs to RedisBarrier"):
            AsyncRedisBarrier(client, gid)
        with pytest.raises(UnsupportedConnection, match="belongs to AsyncRedisBarrier"):
            RedisBarrier(AsyncRedis(), gid)  # type: ignore[arg-type]


@pytest.mark.parametrize("gid", ["", "-a", "a b", "x" * 129, "a\n"])
def test_a_gid_that_is_none_is_refused(gid: str) -> None:
    with contextlib.closing(Redis()) as client, pytest.raises(InvalidRequest, match="gid"):
        RedisBarrier(client, gid)


async def test_deciders_decide_as_barriers_do(redis: RedisServer, gid: str) -> None:
    async_client = AsyncRedis(host=redis.host, port=redis.port)
    with contextlib.closing(redis.connect()) as client:
        client.set(f"{gid}-stock", 1)
        RedisBarrier(client, gid).adjust(f"{gid}-stock", -1)
        assert RedisDecider(client).decide(gid) == "committed"
        assert await AsyncRedisDecider(async_client).decide(gid) == "committed"
        assert await AsyncRedisDecider(async_client).decide(gid + "x") == "rolled_back"
        assert RedisDecider(client).decide(gid + "x") == "rolled_back"
    await async_client.aclose()


def test_tallystick_does_not_need_redis_py_and_says_so_where_it_does() -> None:
    program = (
        "import sys; sys.modules['redis'] = None; import tallystick, tallystick.client, tallystick.barrier\n"
        "try: import tallystick.barrier.redis\n"
        "except ModuleNotFoundError as missing: print(missing)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'tallystick[redis]'" in said.stdout
