"""Where tokens are made, listed and revoked: at a broker that runs, or on the store itself while none does."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from tallystick.cli.links import AnyLink
from tallystick.cli.output import note, number_of
from tallystick.core.errors import Conflict, DirectoryInUse, InvalidRequest, NotFound, error_from_code
from tallystick.core.ops import OpResult
from tallystick.core.token_records import TokenSpec, shown, token_of
from tallystick.extras import need
from tallystick.link import Link

if TYPE_CHECKING:
    from tallystick.store.protocol import BrokerOp, Store

PURPOSE = "tallystick tokens"


class TokenPlace(Protocol):
    """What goes in and comes out has the form of the HTTP API."""

    def create(self, spec: TokenSpec) -> dict[str, Any]: ...

    def tokens(self) -> list[dict[str, Any]]: ...

    def revoke(self, name: str) -> None: ...


class Where(NamedTuple):
    """As the options say it."""

    url: str
    data_dir: Path | None
    store: str
    stores: int
    allow_weak_durability: bool


@contextmanager
def token_place(where: Where) -> Iterator[TokenPlace]:
    if where.data_dir is not None and where.store:
        raise InvalidRequest("--store: give it or --data-dir, not both", field="--store")
    if where.data_dir is not None:
        with _directory(where.data_dir) as stores:
            yield AtRest(stores)
    elif where.store:
        with _cluster(where) as stores:
            yield AtRest(stores)
    else:
        with AnyLink(where.url) as broker:
            yield AtBroker(broker)


@contextmanager
def _directory(path: Path) -> Iterator[list[Store]]:
    need("server")
    from tallystick.store.rocksdb import open_rocksdb  # late: the engine is large

    try:
        store = open_rocksdb(path)
    except DirectoryInUse as error:
        raise Conflict(
            f"{error.detail.partition(';')[0]}: ask that one, with --url in place of --data-dir and an admin's token; "
            "if there is none yet, stop the broker first"
        ) from error
    with closing(store):
        yield [store]


@contextmanager
def _cluster(where: Where) -> Iterator[list[Store]]:
    need("server")
    from tallystick.broker.cluster.visiting import visited  # late, as above
    from tallystick.broker.config import load_config

    flags = {"store": where.store, "stores": where.stores, "allow_weak_durability": where.allow_weak_durability}
    with visited(load_config(flags=flags, environ={}), PURPOSE, _tell_made) as stores:
        yield stores


def _tell_made(count: int) -> None:
    note(f"this has made the cluster, with {number_of(count, 'store')}; it keeps that number (--stores chooses it)")


class AtBroker:
    def __init__(self, broker: Link) -> None:
        self._broker = broker

    def create(self, spec: TokenSpec) -> dict[str, Any]:
        made: dict[str, Any] = self._broker.post("tokens", **msgspec.to_builtins(spec))
        return made

    def tokens(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._broker.get("tokens")["tokens"]
        return found

    def revoke(self, name: str) -> None:
        self._broker.delete("tokens", name)


class AtRest:
    """Stores that nobody else works on. Their audit logs have the name of the user who ran the command."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores

    def create(self, spec: TokenSpec) -> dict[str, Any]:
        from tallystick.store.protocol import DropToken, PutToken

        made, record = token_of(spec, time.time_ns() // 1_000_000)
        record = msgspec.structs.replace(record, created_by=_user())
        done: list[Store] = []
        try:
            for store in self._stores:
                self._act(store, PutToken(record), "create_token", spec.name)
                done.append(store)
        except BaseException:
            for store in done:
                self._act(store, DropToken(spec.name), "revoke_token", spec.name)
            raise
        found: dict[str, Any] = msgspec.to_builtins(made)
        return found

    def tokens(self) -> list[dict[str, Any]]:
        known = {(one.name, one.id): shown(one) for store in self._stores for one in store.tokens()}
        for key, view in known.items():
            having = [store for store in self._stores if key in {(one.name, one.id) for one in store.tokens()}]
            view.missing_on = [store.id for store in self._stores if store not in having]
        return [msgspec.to_builtins(known[key]) for key in sorted(known)]

    def revoke(self, name: str) -> None:
        from tallystick.store.protocol import DropToken

        having = [store for store in self._stores if name in {one.name for one in store.tokens()}]
        if not having:
            raise NotFound(f"there is no token {name!r}", field="name")
        for store in having:
            self._act(store, DropToken(name), "revoke_token", name)

    def _act(self, store: Store, op: BrokerOp, action: str, subject: str) -> None:
        from tallystick.store.protocol import Audited

        audited = Audited(op, _user(), "local", "", action, subject)
        (result,) = store.write([audited], time.time_ns() // 1_000_000).results
        if isinstance(result, OpResult) and result.error:
            raise error_from_code(result.error, result.detail, result.field)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return "unknown"
