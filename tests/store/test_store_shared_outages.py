"""Connections to a server of shared stores that goes silent, refuses, or has lost them: every wait has a limit, nothing
is left open, and few attempts are made."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from eventually import eventually, eventually_equal
from holding_proxy import HoldingProxy, holding_proxy
from servers import RedisServer
from shared_stores import FIXTURES, MARKS, SHARED, new_place
from tallystick.store.shared import attempts, health, mysql_session, postgresql_session
from tallystick.store.shared.attempts import Attempts
from tallystick.store.shared.opening import registry_at, server_at
from tallystick.store.shared.registry import Member, Registry
from tallystick.store.shared.server import ServerAway

ME = Member("me", "me", "http://me")
THREADS = 6
SQL = [
    pytest.param("postgresql", marks=MARKS["postgresql"]),
    pytest.param("mysql", marks=[*MARKS["mysql"], pytest.mark.full]),
]
# What each engine's address needs so that an attempt to a silent server ends soon.
HURRY = {"postgresql": "connect_timeout=2", "mysql": "", "redis": "socket_timeout=1"}


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can wait for."""
    monkeypatch.setattr(health, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(health, "SUSPECT_SECONDS", 0.3)
    monkeypatch.setattr(health, "LOST_SECONDS", 1.0)
    monkeypatch.setattr(mysql_session, "CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(postgresql_session, "CONNECT_SECONDS", 1.0)


@pytest.fixture(params=SHARED)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def proxy(engine: str, request: pytest.FixtureRequest) -> Iterator[HoldingProxy]:
    with holding_proxy(request.getfixturevalue(FIXTURES[engine]).port) as made:
        yield made


@pytest.fixture
def registry(engine: str, proxy: HoldingProxy, request: pytest.FixtureRequest, hurried: None) -> Iterator[Registry]:
    """With several connections that are idle."""
    with contextlib.closing(registry_at(address(engine, proxy.port, request))) as made:
        made.make(2)

        def filled() -> bool:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(lambda _: made.claim(0, -1, "none"), range(20 * THREADS)))
            return proxy.open >= 3

        eventually(filled, "several connections are idle")
        yield made


def address(engine: str, port: int, request: pytest.FixtureRequest) -> str:
    return f"{new_place(engine, request, port)}?{HURRY[engine]}".rstrip("?")


def failures(call: Any) -> int:
    """How often a call fails before it succeeds."""
    for number in range(100):
        with contextlib.suppress(ServerAway):
            call()
            return number
    raise AssertionError("it fails for ever")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_one_connection_that_gets_no_answer_drops_all_that_are_idle(proxy: HoldingProxy, registry: Registry) -> None:
    """As after a failover behind a load balancer: what was connected before is silent for ever."""
    idle = proxy.open
    assert idle >= 3
    proxy.hold()
    proxy.go_on()
    assert failures(lambda: registry.claim(0, -1, "none")) <= 1
    assert failures(lambda: registry.look(ME)) <= 1
    eventually(lambda: proxy.open <= 3, "the connections of before are closed")


def test_a_silence_ends_every_wait_and_leaves_nothing_open(proxy: HoldingProxy, registry: Registry) -> None:
    gc.collect()
    before = descriptors()
    gc.disable()  # a broker collects so seldom that nothing may rely on it
    try:
        proxy.hold()
        with ThreadPoolExecutor(THREADS) as pool:
            for asked in [pool.submit(registry.look, ME) for _ in range(THREADS)]:
                with pytest.raises(ServerAway):
                    asked.result(60)
        with pytest.raises(ServerAway):
            registry.look(ME)
        eventually(lambda: descriptors() <= before, "nothing is left open")
        proxy.go_on()
        eventually(lambda: registry.look(ME), "it answers again", ignoring=(ServerAway,))
    finally:
        gc.enable()


@pytest.mark.parametrize("engine", SQL, indirect=True)
def test_a_statement_that_the_server_works_on_is_waited_for(
    engine: str, proxy: HoldingProxy, hurried: None, request: pytest.FixtureRequest
) -> None:
    with contextlib.closing(server_at(address(engine, proxy.port, request), 0)) as server:
        asked: Any = server
        if engine == "postgresql":
            assert asked._rows("select 7 from pg_sleep(%s)", 2)[0][0] == 7
        else:
            assert asked._ask(b"select 7 + sleep(2)")[0][0][0] == 7
        eventually(lambda: proxy.open <= 2, "no more than that one is kept")
    assert 2 <= proxy.accepted <= 12, "the server is asked, but not with every check"


@pytest.mark.parametrize("engine", SQL, indirect=True)
def test_a_server_that_goes_silent_while_a_session_is_set_up_is_not_waited_for(
    engine: str, hurried: None, request: pytest.FixtureRequest
) -> None:
    """It takes the connection, and says no more after some of the first bytes."""
    server = request.getfixturevalue(FIXTURES[engine])
    with (
        holding_proxy(server.port, silent_after=2) as proxy,
        contextlib.closing(server_at(address(engine, proxy.port, request), 0)) as asked,
    ):
        before = descriptors()
        began = time.monotonic()
        with pytest.raises(ServerAway):
            asked.fence()
        assert time.monotonic() - began < 40
        eventually_equal(descriptors, before)


def test_a_server_that_refuses_is_asked_seldom(engine: str, request: pytest.FixtureRequest) -> None:
    with counting_refusals() as (port, accepted), contextlib.ExitStack() as opened:
        url = address(engine, port, request)
        links = [opened.enter_context(contextlib.closing(registry_at(url))) for _ in range(2)]
        until = time.monotonic() + 2

        def ask(number: int) -> None:
            while time.monotonic() < until:
                with contextlib.suppress(ServerAway):
                    links[number % 2].peer_key()

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(ask, range(THREADS)))
        assert 2 <= len(accepted) <= 40


@contextlib.contextmanager
def counting_refusals() -> Iterator[tuple[int, list[int]]]:
    """A port that ends each connection at once, and the list of them."""
    accepted: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    made, _ = listener.accept()
                    made.close()
                    accepted.append(1)

        thread = threading.Thread(target=refuse)
        thread.start()
        try:
            yield listener.getsockname()[1], accepted
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


# --- attempts --------------------------------------------------------------------------------------------------------


def test_few_attempts_run_at_once_and_those_who_wait_fail_with_the_first_that_fails() -> None:
    tried = Attempts()
    running, most, made = 0, 0, 0
    lock, go_on = threading.Lock(), threading.Event()

    def attempt() -> None:
        nonlocal running, most, made
        with tried.one():
            with lock:
                running, made = running + 1, made + 1
                most = max(most, running)
            go_on.wait(60)
            with lock:
                running -= 1
            raise ServerAway("refused")

    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(attempt) for _ in range(20)]
        eventually(lambda: running == attempts.AT_ONCE, "as many as may")
        go_on.set()
        for one in asked:
            with pytest.raises(ServerAway, match="refused"):
                one.result(60)
    assert most == attempts.AT_ONCE
    assert made < 20


def test_after_a_failure_one_attempt_at_a_time_is_made_until_one_succeeds() -> None:
    tried = Attempts()
    with pytest.raises(ServerAway), tried.one():
        raise ServerAway("refused")
    running, most = 0, 0
    lock = threading.Lock()

    def attempt() -> None:
        nonlocal running, most
        with tried.one():
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.05)
            with lock:
                running -= 1
            raise ServerAway("refused")

    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(attempt) for _ in range(8)]:
            with pytest.raises(ServerAway):
                one.result(60)
    assert most == 1
    with tried.one():
        pass
    with contextlib.ExitStack() as at_once:  # free again
        for _ in range(attempts.AT_ONCE):
            at_once.enter_context(tried.one())


def test_what_a_failed_attempt_leaves_has_no_weight_for_another_server(redis: RedisServer) -> None:
    with contextlib.closing(server_at("redis://127.0.0.1:1/0", 0)) as away, pytest.raises(ServerAway):
        away.fence()
    with contextlib.closing(server_at(redis.url, 999)) as there:
        assert there.fence() is None
