"""A service with products in SQLite and copies of them in Redis.

    python service.py --port 8081 --broker http://127.0.0.1:7440 --redis-port 6379 --database products.db

`GET /products/<id>` (with `?strong=1`, a strong read), `PUT /products/<id>` with `{"price": 120}`. `POST /cache/delete`
is for the broker.
"""

import argparse
import sqlite3
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import redis
import uvicorn
from cache import Cache
from catalogue import AnyCache, Catalogue, open_database
from naive import DeleteAfterCommit, PlainCache
from stage.traps import Traps
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

import tallystick

NO_TRAPS = Traps(None)
SABOTAGE = ("plain-set", "delete-after-commit")


@contextmanager
def opened_catalogue(
    database: Path,
    redis_port: int,
    broker: str,
    delete_url: str,
    *,
    sabotage: str | None = None,
    traps: Traps = NO_TRAPS,
) -> Iterator[Catalogue]:
    """Everything that a process needs. With `sabotage` one of the two usual mistakes instead."""

    class Own(sqlite3.Connection):
        """The worst moment: the row is changed, and nobody knows it yet."""

        def commit(self) -> None:
            super().commit()
            traps.spring("after-commit")

    client = redis.Redis(port=redis_port, decode_responses=True)
    cache: AnyCache = PlainCache(client) if sabotage == "plain-set" else Cache(client)
    kind = DeleteAfterCommit if sabotage == "delete-after-commit" else Catalogue
    # `database` lets the client answer the broker's questions: did this transaction commit?
    with tallystick.Client(broker, group="catalogue", database=lambda: open_database(database), timeout=5) as ts:
        yield kind(lambda: sqlite3.connect(database, timeout=20, factory=Own), cache, ts, delete_url)
    cache.close()
    client.close()


def application(given: argparse.Namespace) -> Starlette:
    delete_url = f"http://127.0.0.1:{given.port}/cache/delete"
    opening = opened_catalogue(
        given.database, given.redis_port, given.broker, delete_url, sabotage=given.sabotage, traps=Traps(given.traps)
    )

    def read(request: Request) -> JSONResponse:
        strong = "strong" in request.query_params
        return JSONResponse(request.app.state.catalogue.read(request.path_params["product"], strong=strong))

    async def write(request: Request) -> JSONResponse:
        price = (await request.json())["price"]
        return await run_in_threadpool(changed, request.app.state.catalogue, request.path_params["product"], price)

    async def delete(request: Request) -> JSONResponse:
        """A call of the broker, made until it is answered with success; to do it twice does no harm."""
        await run_in_threadpool(request.app.state.catalogue.cache.delete, (await request.json())["key"])
        return JSONResponse({"dtm_result": "SUCCESS"})

    @asynccontextmanager
    async def lifespan(app: Starlette):  # type: ignore[no-untyped-def]
        with opening as app.state.catalogue:
            yield

    routes = [
        Route("/products/{product:int}", read),
        Route("/products/{product:int}", write, methods=["PUT"]),
        Route("/cache/delete", delete, methods=["POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


def changed(catalogue: Catalogue, product: int, price: int) -> JSONResponse:
    try:
        return JSONResponse(catalogue.write(product, price))
    except tallystick.CallsNotFinished as error:
        # The row is changed for good; some may see the old copy for a while. That is not "done" yet.
        return JSONResponse({"accepted": error.gid}, 202)


def main() -> None:
    parser = argparse.ArgumentParser(description="Products, and copies of them in a cache.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--broker", required=True, help="its URL")
    parser.add_argument("--redis-port", type=int, required=True)
    parser.add_argument("--database", type=Path, required=True, help="an SQLite file")
    parser.add_argument("--traps", type=Path, help="where kills at an exact moment are set")
    parser.add_argument("--sabotage", choices=SABOTAGE, help="break it, to see that it is noticed")
    given = parser.parse_args()
    uvicorn.run(application(given), host="127.0.0.1", port=given.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
