"""Asking which stores there are and who works on each: any broker will do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from tallystick.client.base.settings import parse_address
from tallystick.client.connection.loop_wire import LoopWire
from tallystick.core.errors import BrokerUnavailable, InvalidRequest, NotFound, TallystickError
from tallystick.core.wire import ClusterView
from tallystick.credentials.credentials import NO_CREDENTIALS, Credentials
from tallystick.credentials.following import may_follow

LOOK_SECONDS = 2.0
STAGGER_SECONDS = 0.25
"""How long one broker is waited for before the next is asked as well."""
MOST_SEEN = 64

_view = msgspec.msgpack.Decoder(ClusterView)


class Views:
    """The addresses at which brokers were seen, those that should answer first; belongs to one event loop."""

    def __init__(self, given: Sequence[str], credentials: Credentials = NO_CREDENTIALS) -> None:
        self._credentials = credentials
        self._given = tuple(given)
        self._addresses = list(given)
        self._wires: dict[str, LoopWire] = {}
        self._turn = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self._addresses)

    async def ask(self, seconds: float = LOOK_SECONDS) -> ClusterView:
        """The view of whoever answers first. One who knows of no cluster names no brokers."""
        # Not the same one first each time: it may be one that is cut off from the rest, and knows nothing new.
        turn = self._turn % len(self._addresses)
        self._turn += 1
        return await self._first(self._addresses[turn:] + self._addresses[:turn], seconds)

    async def answers(self, address: str) -> bool:
        try:
            await self._look(address, LOOK_SECONDS)
        except TallystickError:
            return False
        return True

    def followed(self, url: str) -> str | None:
        """A broker's own word for where one is, in the one spelling of addresses; None if it is not asked there."""
        try:
            address = parse_address(url)
        except InvalidRequest:
            return None
        return address if may_follow(self._given, address) else None

    def learn(self, view: ClusterView) -> None:
        """Remember the brokers of a view: those that live first, then what was given or seen, which may come back."""
        well = {
            address for one in view.brokers if (address := self.followed(one.url)) and one.alive and not one.leaving
        }
        ill = {address for one in view.brokers if (address := self.followed(one.url))} - well
        here = [address for address in self._given if address not in ill]
        known = dict.fromkeys((*here, *sorted(well), *self._given, *sorted(ill), *self._addresses))
        self._addresses = list(known)[:MOST_SEEN]
        for gone in self._wires.keys() - known:
            self._wires.pop(gone).close()

    async def _first(self, addresses: Iterable[str], seconds: float) -> ClusterView:
        """Ask one after the other, each a little later than the one before, until one has answered."""
        waiting = list(addresses)
        asking: set[asyncio.Task[ClusterView]] = set()
        failure: BaseException | None = None
        try:
            while waiting or asking:
                if waiting:
                    asking.add(asyncio.ensure_future(self._look(waiting.pop(0), seconds)))
                pause = STAGGER_SECONDS if waiting else None
                done, asking = await asyncio.wait(asking, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                failures = [task.exception() for task in done]
                for task, failure in zip(done, failures, strict=True):
                    if failure is None:
                        return task.result()
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raise failure or BrokerUnavailable("there is no broker to ask")

    async def _look(self, address: str, seconds: float) -> ClusterView:
        wire = self._wires.get(address)
        if wire is None:
            wire = self._wires[address] = LoopWire(address, self._credentials)
        try:
            return _view.decode(await wire.request("GET", "/v1/cluster", timeout=seconds))
        except msgspec.MsgspecError as failure:
            raise BrokerUnavailable(f"{address} is not a Tallystick broker: {failure}") from failure
        except NotFound:  # one from before there were clusters
            return ClusterView([])

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
