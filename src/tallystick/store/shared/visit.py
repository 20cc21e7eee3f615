"""One store of a cluster in the hands of somebody who is no broker, for a while."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Container

import msgspec

from tallystick.core.errors import Conflict, NotFound
from tallystick.core.ids import new_member_id
from tallystick.store.shared.registry import Holding, Member, Registry, Seen
from tallystick.store.shared.server import ServerAway

BEAT_SECONDS = 0.25


class Visit:
    """Its beat keeps the brokers from taking the store, as if another broker had it; being on its way out, it is given
    nothing more. `end` gives the store back."""

    def __init__(self, registry: Registry, number: int, purpose: str) -> None:
        self._registry, self._number = registry, number
        self._me = Member(new_member_id(), purpose, "", leaving=True)
        self._epoch: int | None = None
        self._ending = threading.Event()
        self._beating: threading.Thread | None = None

    def take(self, lease_ms: int, from_the_living: bool) -> Holding:
        """The store, from nobody or from an owner that is dead: one whose beat stands still for a whole lease."""
        holding = self._holding(self._look())
        if not from_the_living:
            self._refuse_a_living_owner(holding, lease_ms)
        self._epoch = self._registry.claim(self._number, holding.epoch, self._me.id)
        if self._epoch is None:
            raise Conflict(
                f"store {self._number} was taken by a broker just now: stop the brokers of the cluster first"
            )
        self._beating = threading.Thread(target=self._beat, name="beat", daemon=True)
        self._beating.start()
        return msgspec.structs.replace(holding, epoch=self._epoch, owner=self._me.id)

    def _look(self) -> Seen:
        self._me = msgspec.structs.replace(self._me, beat=self._me.beat + 1)
        return self._registry.look(self._me)

    def _holding(self, seen: Seen) -> Holding:
        for holding in seen.holdings:
            if holding.number == self._number:
                return holding
        raise NotFound(f"the cluster has the stores 0 to {len(seen.holdings) - 1}, and no store {self._number}")

    def _refuse_a_living_owner(self, holding: Holding, lease_ms: int) -> None:
        owner = self._living(lease_ms, {holding.owner})
        if owner is not None:
            raise Conflict(
                f"store {self._number} belongs to {owner.name} at {owner.url or 'no address'}, which is alive: stop it "
                "first, or take the store away from it with --take"
            )

    def refuse_company(self, lease_ms: int) -> None:
        """For what must not happen under the eyes of brokers and their clients."""
        broker = self.living_broker(lease_ms)
        if broker is not None:
            raise Conflict(
                f"store {self._number} is to get another id, and {broker.name} at {broker.url} is alive: "
                "stop all brokers of the cluster first"
            )

    def living_broker(self, lease_ms: int) -> Member | None:
        return self._living(lease_ms, {member.id for member in self._look().members if member.url})

    def _living(self, lease_ms: int, among: Container[str]) -> Member | None:
        """One of these whose beat grows. Whoever is dead is watched for a whole lease to know it."""
        before = self._those(among)
        until = time.monotonic() + lease_ms / 1000
        while before and time.monotonic() < until:
            time.sleep(BEAT_SECONDS)
            now = self._those(among)
            for member_id, member in now.items():
                if member_id in before and member.beat != before[member_id].beat:
                    return member
            before = {member_id: member for member_id, member in now.items() if member_id in before}
        return None

    def _those(self, among: Container[str]) -> dict[str, Member]:
        return {member.id: member for member in self._look().members if member.id in among}

    def _beat(self) -> None:
        while not self._ending.wait(BEAT_SECONDS):
            with contextlib.suppress(ServerAway):  # the engine says so, too, to whoever reads and writes
                self._look()

    def rename(self, epoch: int, store_id: str) -> None:
        if not self._registry.rename(self._number, epoch, store_id):
            raise Conflict(f"store {self._number} was taken by a broker while it was worked on")

    def number_of(self, store_id: str) -> int | None:
        """Under which number the cluster knows a store."""
        return next((one.number for one in self._look().holdings if one.id == store_id), None)

    def end(self) -> None:
        self._ending.set()
        if self._beating is not None:
            self._beating.join()
        with contextlib.suppress(ServerAway):  # the brokers will find that nobody has it
            if self._epoch is not None:
                self._registry.release(self._number, self._epoch)
            self._registry.forget(self._me.id)
        self._registry.close()
