"""Opening a store on a shared server: `postgresql://...`, by its number."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tallystick.core.errors import ConfigError, StorageFailed
from tallystick.core.ids import new_member_id, new_store_id
from tallystick.core.store_urls import engine_of, store_url
from tallystick.extras import need
from tallystick.store.kv import keys
from tallystick.store.kv.engine import Changes
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.definitions import table_file
from tallystick.store.shared.engine import SharedEngine, away
from tallystick.store.shared.registry import Registry
from tallystick.store.shared.server import ServerAway, SharedServer

# What connects to a server and gives one of its stores; imported when it is asked for, each needs a driver of its own.
SERVERS = {
    "postgresql": ("tallystick.store.shared.postgresql", "PostgresqlServer"),
    "mysql": ("tallystick.store.shared.mysql", "MysqlServer"),
    "redis": ("tallystick.store.shared.redis", "RedisServer"),
}
REGISTRIES = {
    "postgresql": ("tallystick.store.shared.postgresql_registry", "PostgresqlRegistry"),
    "mysql": ("tallystick.store.shared.mysql_registry", "MysqlRegistry"),
    "redis": ("tallystick.store.shared.redis_registry", "RedisRegistry"),
}


class SharedStore(KvStore):
    """A store on a server, owned under one epoch. Superseded, it has failed for good: claim it again by opening it
    again."""

    def __init__(self, server: SharedServer, epoch: int, settings: StoreSettings, named: str = "") -> None:
        """`named` is what a cluster calls the store; it is drawn here if there is none."""
        self.server, self.epoch = server, epoch
        opened = False

        def open_engine() -> SharedEngine:
            nonlocal opened
            reopened, opened = opened, True
            return whole(SharedEngine(server, epoch, reopened=reopened))

        super().__init__("", open_engine, settings)
        self.id = self._stored_id() or self._name(named or new_store_id())

    def _stored_id(self) -> str:
        return (self._engine.get("index", keys.STORE_ID) or b"").decode()

    def _name(self, store_id: str) -> str:
        """A store that was just made gets an id for its whole life."""
        changes = Changes()
        changes.keys["index"][keys.STORE_ID] = store_id.encode()
        self._engine.write(changes)
        return store_id

    def round_trips(self) -> int:
        return self.server.trips

    def close(self) -> None:
        super().close()
        self.server.close()


def server_at(url: str, store: int) -> SharedServer:
    made: SharedServer = _at(SERVERS, url, store)
    return made


def registry_at(url: str) -> Registry:
    """Where the brokers that share the stores of a server find each other."""
    made: Registry = _at(REGISTRIES, url)
    return made


def sql_at(url: str) -> str:
    """What makes the tables of a cluster on this kind of server; empty if it has no tables. Nobody is asked."""
    engine = engine_of(_read(url))
    kinds = () if engine == "redis" else (engine, f"{engine}_cluster")
    return "\n".join(map(table_file, kinds))


def _at(known: dict[str, tuple[str, str]], url: str, *place: int) -> Any:
    """Made of what the beginning of the URL stands for; `ExtraMissing` if its driver is not installed."""
    read = _read(url)
    need(engine_of(read))
    module, name = known[engine_of(read)]
    return getattr(import_module(module), name)(read, *place)


def _read(url: str) -> str:
    try:
        return store_url(url)
    except ValueError as reason:
        raise ConfigError(f"store: {reason}", field="store") from reason


def open_shared(
    url: str,
    store: int,
    settings: StoreSettings | None = None,
    *,
    owner: str | None = None,
    allow_weak_durability: bool = False,
) -> SharedStore:
    """Claim a store, whoever owned it before, and open it. Leases and members, which tell when that may be done, stand
    on this."""
    server = server_at(url, store)
    try:
        if not allow_weak_durability:
            refuse_weakness(server)
        server.create()
        fence = server.claim(owner or new_member_id())
        return SharedStore(server, fence.epoch, settings or StoreSettings())
    except ServerAway as error:
        server.close()
        raise StorageFailed(away(error)) from error
    except BaseException:
        server.close()
        raise


def whole(engine: SharedEngine) -> SharedEngine:
    """An engine that holds a whole store, and not half a copy of one."""
    source = engine.get("index", keys.HALF_COPIED)
    if source is not None:
        raise StorageFailed(
            f"this store is half a copy of {source.decode()}, which was interrupted; copy it again with "
            "`tallystick store copy ... --force`"
        )
    return engine


def weaknesses_of(url: str, *, refuse: bool) -> tuple[str, ...]:
    """Settings under which the server may lose what it has acknowledged; with `refuse` they are not put up with."""
    server = server_at(url, 0)
    try:
        if refuse:
            refuse_weakness(server)
        return tuple(server.weaknesses())
    finally:
        server.close()


def refuse_weakness(server: SharedServer) -> None:
    found = server.weaknesses()
    if found:
        raise ConfigError(
            f"store: the server may lose what it has acknowledged: {'; '.join(found)}; mend that, or insist with "
            "--allow-weak-durability (allow_weak_durability in a file)",
            field="store",
        )
