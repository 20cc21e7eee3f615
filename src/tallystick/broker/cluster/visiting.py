"""All stores of a cluster in the hands of somebody who is no broker, for a moment, before any broker has started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

from tallystick.broker.cluster.joining import entered
from tallystick.broker.config import Config
from tallystick.core.errors import Conflict, StorageFailed
from tallystick.store.kv.engine import EngineFailed
from tallystick.store.protocol import Store
from tallystick.store.shared.engine import away
from tallystick.store.shared.opening import SharedStore, registry_at, server_at
from tallystick.store.shared.server import ServerAway
from tallystick.store.shared.visit import Visit


@contextmanager
def visited(config: Config, purpose: str, on_made: Callable[[int], None] = lambda _: None) -> Iterator[list[Store]]:
    """The stores, made if nobody did (`on_made` is told how many), each under an epoch of our own; given back at the
    end. Refused while a broker is alive, which would lose its stores for a moment: whoever wants something of it can
    ask it."""
    try:
        with ExitStack() as opened:
            yield _opened(config, purpose, opened, on_made)
    except ServerAway as error:
        raise StorageFailed(away(error)) from error
    except EngineFailed as error:
        raise error.told() from error


def _opened(config: Config, purpose: str, opened: ExitStack, on_made: Callable[[int], None]) -> list[Store]:
    with closing(registry_at(config.store)) as before:
        there = before.made()
    registry, _ = entered(config)
    with closing(registry):
        count = registry.made()
    if not there:
        on_made(count)
    visits = [Visit(registry_at(config.store), number, purpose) for number in range(count)]
    for visit in visits:
        opened.callback(visit.end)
    broker = visits[0].living_broker(config.lease)
    if broker is not None:
        raise Conflict(f"broker {broker.name} at {broker.url} is alive: ask it with --url {broker.url}")
    stores: list[Store] = []
    for number, visit in enumerate(visits):
        holding = visit.take(config.lease, from_the_living=True)
        server = server_at(config.store, number)
        store = SharedStore(server, holding.epoch, config.store_settings(), holding.id)
        opened.callback(store.close)
        stores.append(store)
    return stores
