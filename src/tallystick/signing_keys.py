"""Where signing keys are kept: a file of lines `id secret`, the same for a broker and the services that it calls."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from tallystick.changing_file import LOOK_SECONDS, ChangingFile
from tallystick.core.signing import Keys, SigningKey, parse_keys

KEYS_FILE_VARIABLE = "TALLYSTICK_SIGNING_KEYS_FILE"
HOSTS_VARIABLE = "TALLYSTICK_SIGNING_HOSTS"


def key_file(path: str | Path, *, look_seconds: float = LOOK_SECONDS) -> ChangingFile[Keys]:
    return ChangingFile(path, parse_keys, "signing keys", secret=True, look_seconds=look_seconds)


def keys_of(given: str | Mapping[str, str]) -> Keys:
    """Keys that stand in no file: the text of one, or secrets by their ids."""
    if isinstance(given, str):
        return parse_keys(given)
    return {key_id: SigningKey(key_id, secret) for key_id, secret in given.items()} or parse_keys("")


def new_key_line() -> str:
    """A new key: 4 random bytes as its id, 32 as its secret."""
    return f"{secrets.token_hex(4)} {secrets.token_urlsafe(32)}"
