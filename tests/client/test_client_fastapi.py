"""Where in a FastAPI service a block must end, so that what the caller is told is what happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from client_support import Bank, messages_in
from fastapi import Depends, FastAPI
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

import tallystick
from asgi import asgi_server
from brokers import BrokerProcess


@pytest.fixture
def engine(bank: Bank) -> Iterator[Engine]:
    """The bank's database, with a table whose constraint is looked at by COMMIT, which refuses what breaks it."""
    bank.run("create table pledge (note text references ledger (note) deferrable initially deferred)")
    bank.run("create unique index by_note on ledger (note)")
    made = create_engine(bank.url("sqlite"))
    event.listen(made, "connect", lambda connection, _: connection.execute("pragma foreign_keys = on"))
    yield made
    made.dispose()


def service(ts: tallystick.Client, engine: Engine, topic: str) -> FastAPI:
    app = FastAPI()

    def work(session: Session, tx: tallystick.Transaction, note: str) -> None:
        session.execute(text("insert into pledge values (:note)"), {"note": note})
        if note != "refused":
            session.execute(text("insert into ledger values (:note)"), {"note": note})
        tx.send(topic, note)

    def block() -> Iterator[tuple[Session, tallystick.Transaction]]:
        with Session(engine) as session, ts.transaction(session) as tx:
            yield session, tx

    around_the_request, around_the_function = Depends(block), Depends(block, scope="function")

    @app.post("/dependency/{note}")
    def ends_after_the_answer(note: str, opened: Any = around_the_request) -> str:
        work(*opened, note)
        return "done"

    @app.post("/function-scope/{note}")
    def ends_with_the_function(note: str, opened: Any = around_the_function) -> str:
        work(*opened, note)
        return "done"

    @app.post("/inside/{note}")
    def ends_in_the_function(note: str) -> str:
        with Session(engine) as session, ts.transaction(session) as tx:
            work(session, tx, note)
        return "done"

    return app


@pytest.mark.parametrize("way", ["inside", "function-scope"])
def test_a_commit_that_is_refused_is_an_error_of_the_request(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, engine: Engine, topic: str, way: str
) -> None:
    with asgi_server(service(ts, engine, topic)) as url:
        assert httpx.post(f"{url}/{way}/refused").status_code == 500
        assert (bank.notes(), messages_in(broker.url, topic)) == ([], [])
        assert httpx.post(f"{url}/{way}/kept").status_code == 200
    assert bank.notes() == ["kept"]
    assert [one.text for one in messages_in(broker.url, topic)] == ["kept"]


def test_a_dependency_with_yield_has_answered_before_its_commit_is_refused(
    ts: tallystick.Client, broker: BrokerProcess, bank: Bank, engine: Engine, topic: str
) -> None:
    """What the docs warn of. Both halves are undone all the same: only the answer is wrong."""
    with asgi_server(service(ts, engine, topic)) as url:
        assert httpx.post(f"{url}/dependency/refused").status_code == 200
    assert (bank.notes(), messages_in(broker.url, topic)) == ([], [])
