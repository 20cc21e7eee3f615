"""Check-back handlers whose truth is in Redis, and deciders of any make."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import flask
import httpx
import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from brokers import running_broker
from servers import RedisServer
from tallystick import CheckBack, Client, outgoing
from tallystick.barrier.redis import AsyncRedisDecider, RedisBarrier, RedisDecider
from tallystick.client import handlers
from tallystick.core.errors import InvalidRequest

PATH = "/tallystick/check"


async def asked_asgi(app: Any, gid: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
        return await client.get("/", params={"gid": gid})


def asked_wsgi(app: Any, gid: str) -> httpx.Response:
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://service") as client:
        return client.get("/", params={"gid": gid})


def done(server: RedisServer, gid: str) -> None:
    with contextlib.closing(server.connect()) as client:
        RedisBarrier(client, gid).run("return 1")


async def test_asgi_handlers_tell_what_redis_knows(redis: RedisServer, gid: str) -> None:
    done(redis, gid)
    async_client = AsyncRedis(host=redis.host, port=redis.port)
    with contextlib.closing(redis.connect()) as client:
        for app in (handlers.asgi(RedisDecider(client)), handlers.asgi(AsyncRedisDecider(async_client))):
            answer = await asked_asgi(app, gid)
            assert (answer.status_code, answer.json()) == (200, {"outcome": "committed", "dtm_result": "SUCCESS"})
            answer = await asked_asgi(app, f"{gid}-x")
            assert (answer.status_code, answer.json()) == (409, {"outcome": "rolled_back", "dtm_result": "FAILURE"})
    await async_client.aclose()


def test_wsgi_handlers_tell_what_redis_knows(redis: RedisServer, gid: str) -> None:
    done(redis, gid)
    with contextlib.closing(redis.connect()) as client:
        app = handlers.wsgi(RedisDecider(client))
        assert [asked_wsgi(app, name).status_code for name in (gid, f"{gid}-x")] == [200, 409]


async def test_redis_that_is_away_is_never_an_outcome(gid: str) -> None:
    with contextlib.closing(Redis("127.0.0.1", 1)) as nowhere:
        assert (await asked_asgi(handlers.asgi(RedisDecider(nowhere)), gid)).status_code == 500
        assert asked_wsgi(handlers.wsgi(RedisDecider(nowhere)), gid).status_code == 500


class Says:
    """A decider of the service's own."""

    def __init__(self, word: Any) -> None:
        self.word = word

    def decide(self, gid: str) -> Any:
        return self.word


class SaysLater(Says):
    async def decide(self, gid: str) -> Any:
        return self.word


@pytest.mark.parametrize(("word", "status"), [("committed", 200), ("rolled_back", 409), ("running", 425)])
async def test_any_decider_may_answer(gid: str, word: str, status: int) -> None:
    assert (await asked_asgi(handlers.asgi(Says(word)), gid)).status_code == status
    assert (await asked_asgi(handlers.asgi(SaysLater(word)), gid)).status_code == status
    assert asked_wsgi(handlers.wsgi(Says(word)), gid).status_code == status


@pytest.mark.parametrize("word", [None, True, 1, "", "yes", "SUCCESS", b"committed"])
async def test_an_answer_in_other_words_is_no_outcome(gid: str, word: Any) -> None:
    assert (await asked_asgi(handlers.asgi(Says(word)), gid)).status_code == 500
    assert (await asked_asgi(handlers.asgi(SaysLater(word)), gid)).status_code == 500
    assert asked_wsgi(handlers.wsgi(Says(word)), gid).status_code == 500


def test_an_async_decider_behind_wsgi_is_no_outcome(gid: str) -> None:
    assert asked_wsgi(handlers.wsgi(SaysLater("committed")), gid).status_code == 500


def test_a_decider_needs_a_name() -> None:
    with pytest.raises(InvalidRequest, match="deciders"):
        Client(group="g", deciders={"": Says("committed")})


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_broker_asks_a_flask_app_whose_truth_is_in_redis(redis: RedisServer, gid: str) -> None:
    with contextlib.closing(redis.connect()) as client, running_broker(check_after="300ms") as broker:
        app = flask.Flask("shop")
        app.wsgi_app = handlers.wsgi(RedisDecider(client), app.wsgi_app, PATH)  # type: ignore[method-assign]
        with served(app) as url, Client(broker.url, group="shop") as ts:
            check = CheckBack(url=url + PATH)
            ts.prepare(gid, [outgoing("sold", gid)], check=check)
            ts.prepare(f"{gid}-never", [outgoing("sold", gid)], check=check)
            done(redis, gid)
            group = uuid.uuid4().hex
            told = [message.value.decode() for message in ts.receive("sold", group, wait=20)]
            assert told == [gid]
            for _ in range(200):
                if ts.outcome(f"{gid}-never"):
                    break
                threading.Event().wait(0.05)
            assert (ts.outcome(gid), ts.outcome(f"{gid}-never")) == ("committed", "rolled_back")
