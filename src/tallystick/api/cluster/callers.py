"""Who is asking a broker of a cluster: whom another broker vouches for, or whom this one finds itself.

Every store has all tokens, so any store of our own will do. A broker that owns none asks another: whom it finds is kept
nowhere, so that a token that was revoked is of no use from that moment on, here as anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from tallystick.api.access.browsers import has_signs, is_sign
from tallystick.api.cluster.asking import Asking
from tallystick.api.cluster.owners import Owners
from tallystick.api.cluster.peers import source_in
from tallystick.api.serving.asgi import Scope
from tallystick.api.serving.forwarding import CALLER, FORWARDED, target_of
from tallystick.broker.caller import Caller, Callers, KnownCaller
from tallystick.core.access import Evidence
from tallystick.core.errors import BrokerUnavailable, TallystickError, Unauthenticated

_OURS = frozenset((CALLER, FORWARDED))
_SHOWN = frozenset((CALLER, b"authorization"))


class ClusterCallers:
    def __init__(self, owners: Owners, asking: Asking) -> None:
        self._owners, self._asking = owners, asking
        self._known = Callers()

    # --- a request that has come -----------------------------------------------------------------------------------

    def vouched(self, scope: Scope) -> Scope:
        """A request as it came or, if another broker has sent it, with whom that one has let in, and with what it wants
        as `of_peer`. What is handed on without a word is nobody's: the address that it comes from is a broker's, and
        not that of whoever asks."""
        seal, told = self._owners.seal, [header for header in scope["headers"] if header[0] in _OURS]
        if not told:
            return scope
        headers = [header for name, header in told if name == CALLER]
        if seal is None:  # a broker's word is worth what anybody's is, but no page gets a browser to say it
            if has_signs(dict(scope["headers"])):
                return scope
            caller = Caller(source=source_in(headers[0]) if headers else "")
            return {**scope, "caller": caller, "of_peer": "door"}
        if len(headers) != 1:
            raise Unauthenticated("Tallystick-Forwarded: a broker that hands a request on says who is asking, once")
        found = seal.open(headers[0], scope["method"], target_of(scope, scope["raw_path"]))
        return {**scope, "caller": self._known.of(found.identity, found.source), "of_peer": found.purpose}

    # --- who it is -------------------------------------------------------------------------------------------------

    async def caller_of(self, evidence: Evidence) -> Caller:
        if self._owners.seal is None:
            return Caller(source=evidence.source)
        failure: TallystickError = BrokerUnavailable("no store has an owner just now that knows who may ask")
        for store in self._stores():
            try:
                return await self._found(store, evidence)
            except TallystickError as error:
                if not error.retryable:
                    raise
                failure = error
        raise failure

    def _stores(self) -> Iterator[str]:
        """Our own first, which cost no hop; then those of others. If nobody has any just now, one is waited for."""
        yield from self._owners.own()
        yield from (store for store in self._owners.stores() if self._owners.elsewhere(store) is not None)
        yield from self._owners.stores()[:1]

    async def _found(self, store: str, evidence: Evidence) -> Caller:
        door = self._owners.door(store)
        if door is not None:
            return await door.caller_of(evidence)
        return KnownCaller(await self._asking.identity(store, evidence), evidence.source)


def judged(scope: Scope) -> Scope:
    """A request that was let in here, as another broker gets it: without what showed who sends it, or that a browser
    does, because the name by which that asked is not told."""
    headers = [header for header in scope["headers"] if header[0] not in _SHOWN and not is_sign(header)]
    return {**scope, "headers": headers}
