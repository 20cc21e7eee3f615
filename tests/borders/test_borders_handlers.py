"""What a handler does to its connection on the first attempt: the message comes again, and its effect is there once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from borders_support import Service, run

import tallystick
from eventually import eventually

pytestmark = [pytest.mark.postgresql, pytest.mark.mariadb]

Nasty = Callable[[Any], object]


def in_another_thread(connection: Any) -> None:
    """A block on the handler's connection, from a thread of the handler's own; which is refused."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with tallystick.Client("http://127.0.0.1:9") as ts, ts.transaction(connection):
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise failed[0]


ANY: dict[str, Nasty] = {
    "closes": lambda connection: connection.close(),
    "rolls back": lambda connection: connection.rollback(),
    "commits": lambda connection: connection.commit(),
}
SERVERS: dict[str, Nasty] = {**ANY, "begins a block in a thread": in_another_thread}
POSTGRES: dict[str, Nasty] = {
    "breaks off a stream": lambda connection: next(connection.cursor().stream("select generate_series(1, 100000)")),
    "swallows an error": lambda connection: _swallow(connection),
    "sets another path": run("set local search_path to pg_catalog"),
}


def _swallow(connection: Any) -> None:
    try:
        connection.execute("select 1/0")
    except Exception:
        return


def consume(service: Service, by: Any, nasty: dict[str, Nasty], batch: int) -> None:
    """A message for each; its handler misbehaves after its effect, once."""
    left = dict(nasty)
    service.ts.create_topic(service.topic, queues=1)
    options: Any = {"exactly_once": service.bank.open, "by": by, "concurrency": 1, "batch": batch}

    @service.ts.subscribe(service.topic, group=service.group, **options)
    def handle(message: tallystick.Message, connection: Any) -> None:
        service.bank.note(connection, message.text)
        do = left.pop(message.text, None)
        if do is not None:
            do(connection)

    # Those beside it in a batch do no harm, and must suffer none.
    names = [each for name in nasty for each in (f"before {name}", name, f"after {name}")]
    for name in names:
        service.ts.send(service.topic, name)
    service.ts.start()
    eventually(lambda: sorted(service.bank.notes()) == sorted(names), "each effect, once")
    service.ts.stop()
    assert sorted(service.bank.notes()) == sorted(names)
    assert left == {}


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("by", ["inbox", "offset"])
def test_the_effect_of_a_handler_that_misbehaves_is_there_once(any_service: Service, by: str, batch: int) -> None:
    consume(any_service, by, ANY if any_service.bank.engine == "sqlite" else SERVERS, batch)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("by", ["inbox", "offset"])
def test_the_effect_of_a_handler_that_breaks_its_transaction_is_there_once(
    postgres_service: Service, by: str, batch: int
) -> None:
    consume(postgres_service, by, POSTGRES, batch)
