"""Stores on shared servers as places that a store is copied from and to. A copy owns such a store as a broker does,
under an epoch of its own, so that nobody else can write to it meanwhile."""

from __future__ import annotations

from contextlib import ExitStack, closing
from urllib.parse import urlsplit

from tallystick.core.errors import Conflict, NotFound
from tallystick.core.ids import new_member_id
from tallystick.store.copying.content import EVERYTHING, holds_nothing, told_content
from tallystick.store.kv import keys
from tallystick.store.kv.engine import AREAS, Changes, Engine, Superseded
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.opening import refuse_weakness, registry_at, server_at, whole
from tallystick.store.shared.server import SharedServer
from tallystick.store.shared.visit import Visit

PURPOSE = "tallystick store copy"


class _Claimed:
    """A store on a server, claimed; as a visitor of the cluster, if the server has one."""

    def __init__(self, url: str, number: int, server: SharedServer, lease_ms: int, take: bool) -> None:
        self.server, self.visit, self.known_as = server, None, ""
        with ExitStack() as undone:
            self.visit = _visit(url, number)
            if self.visit is None:
                self.epoch = server.claim(f"{PURPOSE} {new_member_id()}").epoch
            else:
                undone.callback(self.visit.end)
                holding = self.visit.take(lease_ms, take)
                self.epoch, self.known_as = holding.epoch, holding.id
            self.engine = SharedEngine(server, self.epoch)
            undone.pop_all()

    def check(self) -> None:
        fence = self.server.fence()
        if fence is None or fence.epoch != self.epoch:
            raise Superseded("the store was taken by somebody else")

    def close(self) -> None:
        if self.visit is not None:
            self.visit.end()


def _visit(url: str, number: int) -> Visit | None:
    registry = registry_at(url)
    try:
        if registry.made():
            return Visit(registry, number, PURPOSE)
    except BaseException:
        registry.close()
        raise
    registry.close()
    return None


def _there(url: str) -> str:
    """Which there are, if it is a cluster."""
    with closing(registry_at(url)) as registry:
        count = registry.made()
    return f"; the cluster there has the stores 0 to {count - 1}" if count else ""


class SharedSource:
    def __init__(self, url: str, number: int, lease_ms: int, take: bool) -> None:
        self.name = place_name(url, number)
        with ExitStack() as undone:
            self._server = server_at(url, number)
            undone.callback(self._server.close)
            if self._server.fence() is None:
                raise NotFound(f"there is no store at {self.name}{_there(url)}")
            self._claimed = _Claimed(url, number, self._server, lease_ms, take)
            undone.callback(self._claimed.close)
            self.engine: Engine = whole(self._claimed.engine)
            stored = self.engine.get("index", keys.STORE_ID) or b""
            self.store_id = stored.decode() or self._claimed.known_as
            if not self.store_id:
                raise NotFound(f"the store at {self.name} was never used: it has no id")
            undone.pop_all()

    def check(self) -> None:
        self._claimed.check()

    def close(self) -> None:
        self._claimed.close()
        self._server.close()


class SharedTarget:
    def __init__(
        self, url: str, number: int, lease_ms: int, take: bool, overwrite: bool, allow_weak_durability: bool
    ) -> None:
        self.name, self._overwrite = place_name(url, number), overwrite
        self._url, self._number = url, number
        self._lease_ms, self._store_id = lease_ms, ""
        with ExitStack() as undone:
            self._server = server_at(url, number)
            undone.callback(self._server.close)
            if not allow_weak_durability:
                refuse_weakness(self._server)
            self._server.create()
            self._claimed = _Claimed(url, number, self._server, lease_ms, take)
            undone.pop_all()

    def begin(self, store_id: str, source: str) -> Engine:
        engine = self._claimed.engine
        free = _free(engine)
        if not free and not self._overwrite:
            raise Conflict(f"{self.name} is not empty; --force overwrites what is in it ({told_content(engine)})")
        if (visit := self._claimed.visit) is None:
            _refuse_twice(self._url, self._number, store_id)
        else:
            there = visit.number_of(store_id)
            if there not in (None, self._number):
                raise Conflict(f"store {store_id} is in this cluster already, under the number {there}")
            if there is None:
                visit.refuse_company(self._lease_ms)
        self._store_id = store_id
        marked = Changes()
        marked.ranges += [] if free else [(area, *EVERYTHING) for area in AREAS]
        marked.keys["index"][keys.HALF_COPIED] = source.encode()
        engine.write(marked)
        return engine

    def finish(self) -> None:
        # The cluster first: a store that goes by two names must not be opened.
        if self._claimed.visit is not None:
            self._claimed.visit.rename(self._claimed.epoch, self._store_id)
        named = Changes()
        named.keys["index"] = {keys.STORE_ID: self._store_id.encode(), keys.HALF_COPIED: None}
        self._claimed.engine.write(named)

    def close(self) -> None:
        self._claimed.close()
        self._server.close()


def _refuse_twice(url: str, number: int, store_id: str) -> None:
    """No cluster can be made of stores of which two have one id."""
    with closing(registry_at(url)) as registry:
        there = [other for other, name in registry.stored_ids().items() if name == store_id and other != number]
    if there:
        raise Conflict(
            f"store {store_id} is on this server already, under the number {there[0]}, and a cluster cannot have it "
            f"twice: leave it there, with `serve --stores` larger than {there[0]}, or copy it to an empty database"
        )


def _free(engine: Engine) -> bool:
    return engine.get("index", keys.HALF_COPIED) is None and holds_nothing(engine)


def place_name(url: str, number: int) -> str:
    """What people are shown: never a password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} store {number}"
