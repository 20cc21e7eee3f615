"""Opening a store on a shared server: `postgresql://...`, by its number."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from urllib.parse import urlsplit

from tallystick.core.errors import ConfigError, StorageFailed
from tallystick.core.ids import new_member_id, new_store_id
from tallystick.store.kv import keys
from tallystick.store.kv.engine import Changes
from tallystick.store.kv.store import KvStore
from tallystick.store.protocol import StoreSettings
from tallystick.store.shared.engine import SharedEngine, away
from tallystick.store.shared.registry import Registry
from tallystick.store.shared.server import ServerAway, SharedServer

# What connects to a server and gives one of its stores; imported when it is asked for, each needs a driver of its own.
SERVERS = {
    "postgresql": ("tallystick.store.shared.postgresql", "PostgresqlServer"),
    "mysql": ("tallystick.store.shared.mysql", "MysqlServer"),
    "redis": ("tallystick.store.shared.redis", "RedisServer"),
}
REGISTRIES = {"postgresql": ("tallystick.store.shared.postgresql_registry", "PostgresqlRegistry")}


class SharedStore(KvStore):
    """A store on a server, owned under one epoch. Superseded, it has failed for good: claim it again by opening it
    again."""

    def __init__(self, server: SharedServer, epoch: int, settings: StoreSettings, named: str = "") -> None:
        """`named` is what a cluster calls the store; it is drawn here if there is none."""
        self.server, self.epoch = server, epoch
        super().__init__("", lambda: SharedEngine(server, epoch), settings)
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
    scheme = urlsplit(url).scheme
    if scheme not in SERVERS:
        raise ConfigError(f"store: {scheme!r} is none of {', '.join(SERVERS)}", field="store")
    module, name = SERVERS[scheme]
    make: Callable[[str, int], SharedServer] = getattr(import_module(module), name)
    return make(url, store)


def registry_at(url: str) -> Registry:
    """Where the brokers that share the stores of a server find each other."""
    scheme = urlsplit(url).scheme
    if scheme not in REGISTRIES:
        raise ConfigError(f"store: there are no clusters on {scheme!r} yet", field="store")
    module, name = REGISTRIES[scheme]
    make: Callable[[str], Registry] = getattr(import_module(module), name)
    return make(url)


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
            _refuse_weakness(server)
        server.create()
        fence = server.claim(owner or new_member_id())
        return SharedStore(server, fence.epoch, settings or StoreSettings())
    except ServerAway as error:
        server.close()
        raise StorageFailed(away(error)) from error
    except BaseException:
        server.close()
        raise


def weaknesses_of(url: str, *, refuse: bool) -> tuple[str, ...]:
    """Settings under which the server may lose what it has acknowledged; with `refuse` they are not put up with."""
    server = server_at(url, 0)
    try:
        if refuse:
            _refuse_weakness(server)
        return tuple(server.weaknesses())
    finally:
        server.close()


def _refuse_weakness(server: SharedServer) -> None:
    found = server.weaknesses()
    if found:
        raise ConfigError(
            f"store: the server may lose what it has acknowledged: {'; '.join(found)}; mend that, or insist with "
            "allow_weak_durability",
            field="store",
        )
