"""The other stores of the server that a store was copied from: what they hold stays where it is."""

from __future__ import annotations

from contextlib import closing

from msgspec import Struct

from tallystick.store.copying.content import messages_in
from tallystick.store.kv.engine import Changes
from tallystick.store.shared.engine import SharedEngine
from tallystick.store.shared.opening import registry_at, server_at
from tallystick.store.shared.server import SharedServer


class OtherStore(Struct, frozen=True):
    number: int
    store: str
    messages: int


def others_with_messages(url: str, number: int) -> list[OtherStore]:
    """In the order of their numbers. Brokers may be at work on them: it is so when it is looked at."""
    with closing(registry_at(url)) as registry:
        ids = registry.stored_ids()
    found = (OtherStore(other, name, _messages(url, other)) for other, name in sorted(ids.items()) if other != number)
    return [one for one in found if one.messages]


def _messages(url: str, number: int) -> int:
    with closing(server_at(url, number)) as server:
        return messages_in(_Onlooker(server))


class _Onlooker(SharedEngine):
    """Looks at a store that is somebody else's."""

    def __init__(self, server: SharedServer) -> None:
        super().__init__(server, epoch=0)

    def _begin(self, reopened: bool) -> int:
        # Where an owner keeps its latest values beside their table, asking for the fence moves them there.
        self._ask(self._server.fence)
        return 0  # nothing else is written, not even the empty unit of an owner

    def write(self, changes: Changes) -> None:
        raise NotImplementedError("whoever looks on does not write")
