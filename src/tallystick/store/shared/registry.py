"""Who is there and who owns what: what the brokers of a cluster tell each other through the engine that they share."""

from __future__ import annotations

import secrets
from typing import Protocol

from msgspec import Struct

from tallystick.core.errors import ConfigError

PEER_KEY_BYTES = 32
_JUMP = 1 << 20  # the most that a claim raises an epoch by


class Member(Struct, frozen=True):
    """A broker of the cluster, as it tells of itself."""

    id: str  # drawn anew at each start, so that nothing of an earlier life is taken for this one's
    name: str
    url: str  # where the others reach it
    grpc_url: str = ""
    beat: int = 0  # grows with each look; that it has grown is all that others conclude from
    leaving: bool = False  # owns what it owns until it has handed it over, and takes nothing more


class Holding(Struct, frozen=True):
    """A store of the cluster and who owns it: nobody, if the owner is empty."""

    number: int
    id: str
    epoch: int
    owner: str


class Seen(Struct, frozen=True):
    """What one look has brought, all of one moment."""

    members: tuple[Member, ...]
    holdings: tuple[Holding, ...]
    now_ms: int  # by the engine's clock
    unheard: str = ""  # why our own beat could not be stored: the server answers, but has no room for it


class Registry(Protocol):
    """Each call blocks. On SQL servers it is one round trip; on Redis a look is one to each node, and one more. A
    server that cannot be reached raises `ServerAway`; what was asked for may have happened then. All may be asked
    again."""

    def make(self, count: int) -> None:
        """Make the stores, if that was not done before; refuse to make another number of them."""

    def made(self) -> int:
        """How many stores there are; 0 as long as no cluster was made."""

    def stored_ids(self) -> dict[int, str]:
        """The ids that lie in stores of the server, by their numbers, whether a cluster was made of them or not."""

    def look(self, me: Member) -> Seen:
        """Store our beat, and see all members. If the server has no room for the beat, `unheard` says why."""

    def claim(self, number: int, expected_epoch: int, owner: str) -> int | None:
        """Take a store, if its epoch is still the expected one: the new epoch, which is larger by any number. None if
        somebody was faster. From here on the engine refuses what earlier owners write."""

    def release(self, number: int, epoch: int) -> None:
        """Nobody owns the store any more; nothing if its epoch is another by now."""

    def rename(self, number: int, epoch: int, store_id: str) -> bool:
        """Another store has come under this number: it has an id of its own. False, and nothing is changed, if the
        epoch is another by now."""

    def forget(self, member_id: str) -> None:
        """Drop the row of somebody who is gone."""

    def peer_key(self) -> bytes:
        """What the brokers of this cluster, and nobody else, sign with: drawn by whoever asks first, and then the same
        for all of them."""

    def close(self) -> None: ...


def epoch_after(epoch: int) -> int:
    """A failover to a copy that was behind may take a claim back, whose owner still believes. So the next one must not
    be given the same epoch: it is raised by any number."""
    return epoch + 1 + secrets.randbelow(_JUMP)


def new_peer_key() -> bytes:
    return secrets.token_bytes(PEER_KEY_BYTES)


def wrong_count(made: int, wanted: int) -> ConfigError:
    return ConfigError(
        f"stores: the cluster was made with {made} stores, and cannot have {wanted}: leave --stores out, or say {made}",
        field="stores",
    )
