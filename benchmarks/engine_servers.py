"""Servers for shared stores, durable as in earnest: `with SERVERS["PostgreSQL"]() as url`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from urllib.parse import quote

from tests.servers import Server, mariadb_server, postgres_server, redis_server


@contextmanager
def _postgresql() -> Iterator[str]:
    with postgres_server(shared_buffers="256MB", max_wal_size="2GB") as server:
        yield url_of(server)


@contextmanager
def _mariadb() -> Iterator[str]:
    with mariadb_server(innodb_buffer_pool_size="256M", innodb_log_file_size="1G") as server:
        yield url_of(server)


@contextmanager
def _redis() -> Iterator[str]:
    with redis_server(appendonly="yes", appendfsync="always") as server:
        yield server.url


def url_of(server: Server) -> str:
    who = f"{server.user}:{quote(server.password, safe='')}"
    return f"{server.engine}://{who}@{server.host}:{server.port}/{server.database}"


SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {
    "PostgreSQL": _postgresql,
    "MariaDB": _mariadb,
    "Redis": _redis,
}
