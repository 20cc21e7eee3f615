"""Signs what the broker sends, so that a service knows who is asking."""

from __future__ import annotations

from pathlib import Path

from tallystick.core.clock import Clock, SystemClock
from tallystick.core.ids import new_nonce
from tallystick.core.signing import sign
from tallystick.signing_keys import key_file


class Signer:
    """With the first key of a file, as it is now."""

    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self._keys = key_file(path)
        self._clock = clock or SystemClock()

    def signature(self, method: str, host: str, path: str, body: bytes) -> str:
        """For one request to one host and port, and no other: it is never the same twice. `path` with its query, as it
        is sent."""
        key = next(iter(self._keys.value.values()))
        return sign(key, method, host, path, self._clock.now_ms(), new_nonce(), body)
