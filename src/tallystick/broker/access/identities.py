"""From what a request shows to who sends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tallystick.core.access import Evidence, Identity
from tallystick.core.errors import Unauthenticated


class IdentityWay(Protocol):
    """One kind of evidence."""

    async def identity(self, evidence: Evidence) -> Identity | None:
        """Who it is; None if this is no evidence of this kind. Raises `Unauthenticated` if it is, and is not right."""


class Identities:
    """Asks one way after the other. What somebody says in `Authorization` counts before what the connection shows, and
    if it is wrong the connection does not make up for it."""

    def __init__(
        self,
        said: Sequence[IdentityWay],
        shown: Sequence[IdentityWay],
        holds: Callable[[Identity], bool] = lambda _: True,
    ) -> None:
        """`said` are ways that look at `Authorization`, `shown` the others. `holds` tells whether what was found a
        while ago is still true."""
        self._said, self._shown, self._holds = said, shown, holds

    async def find(self, evidence: Evidence) -> Identity:
        for way in self._said if evidence.authorization else self._shown:
            found = await way.identity(evidence)
            if found is not None:
                return found
        if evidence.authorization:
            raise Unauthenticated("Authorization: nobody is known here by that; it is to be `Bearer` and a token")
        raise Unauthenticated(
            "no token was shown (Authorization: Bearer and a token); an admin makes one with `tallystick tokens create`"
        )

    def check_again(self, identity: Identity) -> None:
        """Raises `Unauthenticated` if whoever was let in a while ago would not be let in now."""
        if not self._holds(identity):
            raise Unauthenticated(f"{identity.name} is not let in any more: the token was revoked, or has expired")
