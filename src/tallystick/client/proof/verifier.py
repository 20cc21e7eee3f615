"""Tells a broker's request from a stranger's."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from tallystick.client.base import forks
from tallystick.client.proof.hosts import parse_hosts
from tallystick.core.clock import Clock, SystemClock
from tallystick.core.errors import ConfigError, Unproven
from tallystick.core.signing import TOLERANCE_MS, Keys, SignatureClaim, claim, prove
from tallystick.signing_keys import HOSTS_VARIABLE, KEYS_FILE_VARIABLE, key_file, keys_of

log = logging.getLogger("tallystick.client")

MOST_NONCES = 1_000_000
_SLICE_MS = 10_000


class Verifier:
    """Verifies that requests come from a broker, which signs them with a key that both sides have.

    The keys are those of a file (`keys_file`, or the environment's TALLYSTICK_SIGNING_KEYS_FILE), which is read again
    when it changes, or `keys` themselves: the text of such a file, or secrets by their ids. Each of them is believed.
    `tolerance` is how many seconds the clocks of both sides may differ, a request's time on its way included.

    A request that came before is refused: within the tolerance each is remembered, up to `most_nonces` (about 100
    bytes each). More than that are refused and not forgotten, and a broker calls again. Each process remembers for
    itself. `prefix` is what a proxy takes away from the beginning of the path. Safe to use from several threads.

    `hosts` are those as which brokers call this service, such as `payments.internal:8080`, also as one text with commas
    (or the environment's TALLYSTICK_SIGNING_HOSTS). What was signed for another host is refused, and has not come from
    a broker, but from somebody whom a broker has called. Without `hosts` that is not compared.
    """

    def __init__(
        self,
        keys: str | Mapping[str, str] | None = None,
        *,
        keys_file: str | Path | None = None,
        hosts: str | Iterable[str] | None = None,
        tolerance: float = TOLERANCE_MS / 1000,
        prefix: str = "",
        most_nonces: int = MOST_NONCES,
        clock: Clock | None = None,
    ) -> None:
        if keys is not None and keys_file is not None:
            raise ConfigError("a Verifier has keys or a keys_file, not both", field="keys")
        if tolerance <= 0:
            raise ConfigError("tolerance: seconds, more than 0", field="tolerance")
        path = keys_file or os.environ.get(KEYS_FILE_VARIABLE)
        if keys is None and not path:
            raise ConfigError(f"a Verifier needs keys, a keys_file, or {KEYS_FILE_VARIABLE}", field="keys")
        self._given = None if keys is None else keys_of(keys)
        self._file = key_file(path) if keys is None and path else None
        hosts = os.environ.get(HOSTS_VARIABLE) or None if hosts is None else hosts
        self._hosts = None if hosts is None else parse_hosts(hosts)
        self._tolerance_ms = round(tolerance * 1000)
        self._prefix = prefix.rstrip("/")
        self._clock = clock or SystemClock()
        self._nonces = _Nonces(self._tolerance_ms, most_nonces)

    def verify(self, signature: str | None, method: str, path: str, body: bytes) -> None:
        """Raise `Unproven` unless a broker has sent just this, and it comes for the first time. `signature` is the
        value of the header `Tallystick-Signature`, `path` has the query with it, as it was sent."""
        self.prove(self.claim(signature), method, path, body)

    def claim(self, signature: str | None) -> SignatureClaim:
        """What is to be said of the header alone, before a body is read that may be large."""
        return claim(self._keys(), signature, self._clock.now_ms(), self._tolerance_ms, self._hosts)

    def prove(self, claimed: SignatureClaim, method: str, path: str, body: bytes) -> None:
        """The rest of `verify`."""
        prove(claimed, method, f"{self._prefix}{path}", body)
        self._nonces.take(claimed, self._clock.now_ms())

    def _keys(self) -> Keys:
        if self._file is not None:
            return self._file.value
        assert self._given is not None  # noqa: S101 - one or the other
        return self._given


class _Nonces:
    """Those that were used while their time lasts, by when they were signed. The time is signed, too: one and the same
    request is always found in the same slice, and slices that are too old go as a whole."""

    def __init__(self, tolerance_ms: int, most: int) -> None:
        self._tolerance_ms, self._most = tolerance_ms, most
        self._slices: dict[int, set[tuple[str, str]]] = {}
        self._lock = threading.Lock()
        forks.watch(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent's may have held it

    def take(self, claimed: SignatureClaim, now_ms: int) -> None:
        """Use it up; `Unproven` if that was done before, or if there is no room to remember it."""
        if claimed.at_ms < now_ms - self._tolerance_ms:  # by now: others of its time may be forgotten
            raise Unproven("the request took too long to arrive", reason="skewed")
        place = claimed.at_ms // _SLICE_MS
        with self._lock:
            self._forget(now_ms)
            taken = self._slices.setdefault(place, set())
            used = (claimed.key.id, claimed.nonce)
            if used in taken:
                raise Unproven("this very request came before", reason="replayed")
            if sum(map(len, self._slices.values())) >= self._most:
                log.error("a broker's request was refused: most_nonces (%d) came within the tolerance", self._most)
                raise Unproven("too many requests to tell whether this one came before", reason="full")
            taken.add(used)

    def _forget(self, now_ms: int) -> None:
        oldest = (now_ms - self._tolerance_ms) // _SLICE_MS
        for place in [place for place in self._slices if place < oldest]:
            del self._slices[place]


def default_verifier() -> Verifier | None:
    """That of the environment; one for the whole process, because what one has seen the others must know."""
    path = os.environ.get(KEYS_FILE_VARIABLE)
    return _of_file(path, os.environ.get(HOSTS_VARIABLE)) if path else None


def needed(verifier: Verifier | None) -> Verifier:
    """The one that was given, or that of the environment; ConfigError if there is neither."""
    return verifier or default_verifier() or Verifier()


@lru_cache(maxsize=8)
def _of_file(path: str, hosts: str | None) -> Verifier:
    return Verifier(keys_file=path, hosts=hosts or None)
