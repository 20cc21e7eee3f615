"""What the client's tests share: a service's database on each engine, a proxy that loses answers, patience."""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import tallystick
from servers import Server
from tallystick.barrier import create_tables

T = TypeVar("T")


class Bank:
    """A service's own database, with the tables of Tallystick and one for its business."""

    def __init__(self, engine: str, place: Path | Server) -> None:
        self.engine = engine
        self._place = place
        self._database = place.new_database() if isinstance(place, Server) else ""
        self.mark = "?" if engine == "sqlite" else "%s"
        with self.connection() as connection:
            create_tables(connection)
            connection.cursor().execute("create table ledger (note varchar(100) not null)")
            connection.commit()

    @property
    def path(self) -> Path:
        assert isinstance(self._place, Path)
        return self._place

    def open(self) -> Any:
        if isinstance(self._place, Server):
            return self._place.connect(self._database)
        return sqlite3.connect(self._place, timeout=10)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        with contextlib.closing(self.open()) as connection:
            yield connection

    def url(self, driver: str) -> Any:
        if isinstance(self._place, Server):
            return self._place.url(driver, self._database)
        return f"{driver}:///{self._place}"

    def parameters(self) -> dict[str, Any]:
        assert isinstance(self._place, Server)
        return self._place.parameters(self._database)

    def note(self, connection: Any, note: str) -> None:
        """The business of this service."""
        connection.cursor().execute(f"insert into ledger (note) values ({self.mark})", (note,))

    def notes(self) -> list[str]:
        return [row[0] for row in self.rows("select note from ledger order by note")]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with self.connection() as connection:
            cursor = connection.cursor()
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()]

    def run(self, sql: str) -> None:
        with self.connection() as connection:
            connection.cursor().execute(sql)
            connection.commit()


def messages_in(url: str, topic: str) -> list[tallystick.Message]:
    """Every visible message of a topic, queue by queue."""
    with tallystick.Client(url) as ts:
        try:
            queues = ts.topic(topic).queues
        except tallystick.errors.NotFound:
            return []
        return [message for queue in range(queues) for message in ts.fetch(topic, queue, 0).messages]


def values_in(url: str, topic: str) -> list[Any]:
    return sorted(json.loads(message.value) for message in messages_in(url, topic))


class LossyProxy:
    """A way to a broker on which answers can be lost.

    A request that contains the bytes `losing` is passed on, and the connection is cut instead of handing back the
    answer. One that contains `refusing` is not even passed on. `cut` counts the answers that were lost.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.losing: bytes | None = None
        self.refusing: bytes | None = None
        self.lose_at_most = 1_000_000
        self.cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._target) as broker:
            state = {"losing": False}
            threading.Thread(target=self._requests, args=(client, broker, state), daemon=True).start()
            while answer := broker.recv(65536):
                if state["losing"]:
                    self.cut += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(answer)

    def _requests(self, client: socket.socket, broker: socket.socket, state: dict[str, bool]) -> None:
        with contextlib.suppress(OSError):
            while request := client.recv(65536):
                if self.losing is not None and self.losing in request and self.cut < self.lose_at_most:
                    state["losing"] = True
                if self.refusing is not None and self.refusing in request:
                    self.cut += 1
                    client.shutdown(socket.SHUT_RDWR)
                    break
                broker.sendall(request)
            broker.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()


@contextlib.contextmanager
def lossy_proxy(port: int) -> Iterator[LossyProxy]:
    proxy = LossyProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()


def pay(
    ts: tallystick.Client,
    bank: Bank,
    topic: str,
    value: Any,
    *,
    note: str = "paid",
    connection: Any = None,
    fail: Exception | None = None,
    **options: Any,
) -> str:
    """One block: a note in the ledger and a message, or the failure that is asked for; its gid."""
    with contextlib.ExitStack() as stack:
        used = connection or stack.enter_context(bank.connection())
        with ts.transaction(used, **options) as tx:
            bank.note(used, note)
            tx.send(topic, value)
            if fail is not None:
                raise fail
        return tx.gid
