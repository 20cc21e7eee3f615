"""Where a copy comes from and goes to, as an operator names it: a directory, or a server's address and a number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import Struct

from tallystick.core.errors import ConfigError, DataDirectoryError, StorageFailed
from tallystick.core.store_urls import store_url
from tallystick.store.copying.copy import Copied, CopySource, CopyTarget, Told, copy
from tallystick.store.copying.directories import DirectorySource, DirectoryTarget
from tallystick.store.copying.others import OtherStore, others_with_messages
from tallystick.store.copying.servers import SharedSource, SharedTarget
from tallystick.store.kv.engine import EngineFailed
from tallystick.store.shared.engine import away
from tallystick.store.shared.server import ServerAway


class CopyPlace(Struct, frozen=True):
    """`address` is a directory unless it has a scheme; `number` is for a server alone."""

    address: str
    number: int | None = None

    @property
    def shared(self) -> bool:
        return "://" in self.address

    def url(self, option: str) -> str:
        try:
            return store_url(self.address)
        except ValueError as reason:
            raise ConfigError(f"{option}: {reason}", field=option) from reason

    def directory(self, option: str) -> Path:
        if self.number is not None:
            raise ConfigError(f"{option}: a data directory holds one store, which has no number", field=option)
        return Path(self.address)


class CopySettings(Struct, frozen=True):
    lease_ms: int
    overwrite: bool = False  # what the target holds
    take: bool = False  # a store from a broker that is alive
    allow_weak_durability: bool = False


def copy_store(
    source: CopyPlace, target: CopyPlace, settings: CopySettings, on_copied: Told, on_read_back: Told
) -> Copied:
    """Returns when the copy is whole and durable. Whatever goes wrong before, the source is as it was, and the target
    is refused, or marked as half a copy."""
    with _as_told(), closing(_source(source, settings)) as opened, closing(_target(target, settings)) as made:
        return copy(opened, made, on_copied, on_read_back)


def left_behind(source: CopyPlace) -> list[OtherStore]:
    """Stores beside the one that was copied, whose messages were not."""
    if not source.shared:
        return []
    with _as_told():
        return others_with_messages(source.url("FROM"), source.number or 0)


def _source(place: CopyPlace, settings: CopySettings) -> CopySource:
    if place.shared:
        return SharedSource(place.url("FROM"), place.number or 0, settings.lease_ms, settings.take)
    return DirectorySource(place.directory("--from-store"))


def _target(place: CopyPlace, settings: CopySettings) -> CopyTarget:
    if place.shared:
        return SharedTarget(
            place.url("TO"),
            place.number or 0,
            settings.lease_ms,
            settings.take,
            settings.overwrite,
            settings.allow_weak_durability,
        )
    return DirectoryTarget(place.directory("--to-store"), settings.overwrite)


@contextmanager
def _as_told() -> Iterator[None]:
    try:
        yield
    except ServerAway as error:
        raise StorageFailed(away(error)) from error
    except EngineFailed as error:
        raise error.told() from error
    except OSError as error:
        raise DataDirectoryError(str(error)) from error
