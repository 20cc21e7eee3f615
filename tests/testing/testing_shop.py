"""A shop with an SQLite database, as a user of the library would test it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from tallystick.barrier import create_tables


class Shop:
    def __init__(self, path: Path) -> None:
        self.path = path
        conn = self.open()
        create_tables(conn)
        conn.execute("create table orders (item text)")
        conn.commit()
        self.conn = conn

    def open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=5)

    def engine(self) -> AsyncEngine:
        return create_async_engine(f"sqlite+aiosqlite:///{self.path}")

    def items(self) -> list[str]:
        """As another process sees it."""
        conn = self.open()
        try:
            return [item for (item,) in conn.execute("select item from orders order by rowid")]
        finally:
            conn.close()

    def close(self) -> None:
        self.conn.close()
