"""A producer's own database that a broker may read: SQLite, PostgreSQL or MariaDB."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from servers import Server
from tallystick.barrier import adapt_sync, create_tables, mark_committed, run_sync


class Service:
    """One database, made with the tables of Tallystick unless told otherwise."""

    def __init__(self, place: Path | Server, tables: bool = True) -> None:
        self._place = place
        self._database = place.new_database() if isinstance(place, Server) else ""
        if tables:
            self.create_tables()

    @property
    def url(self) -> str:
        """As an operator writes it into the broker's configuration."""
        if isinstance(self._place, Server):
            return str(self._place.url(self._place.engine, self._database).render_as_string(hide_password=False))
        return f"sqlite://{self._place}"

    def create_tables(self) -> None:
        with self.connection() as connection:
            create_tables(connection)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Any]:
        if isinstance(self._place, Server):
            made = self._place.connect(self._database)
        else:
            made = sqlite3.connect(self._place, timeout=10)
        with contextlib.closing(made):
            yield made

    @contextlib.contextmanager
    def local_transaction(self, *gids: str) -> Iterator[Any]:
        """A business transaction with the barrier's mark in it, open until the test commits it or leaves it."""
        with self.connection() as connection:
            if not isinstance(self._place, Server):
                connection.execute("begin immediate")
            for gid in gids:
                run_sync(adapt_sync(connection), mark_committed(gid))
            yield connection
            connection.rollback()

    def commit(self, *gids: str) -> None:
        with self.local_transaction(*gids) as connection:
            connection.commit()
