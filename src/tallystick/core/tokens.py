"""Tokens: `tally_<id>_<secret>`. The id finds what is kept of one, the secret proves it; only its digest is kept."""

from __future__ import annotations

import hashlib
import re
import secrets
import string

PREFIX = "tally"
ID_LENGTH = 12
SECRET_BYTES = 32
_ID_LETTERS = string.ascii_lowercase + string.digits
_FORM = re.compile(rf"{PREFIX}_([a-z0-9]{{{ID_LENGTH}}})_([A-Za-z0-9_-]{{43}})\Z")


def new_token() -> tuple[str, str, str]:
    """A token nobody has seen, its id, and the digest that is kept of it."""
    name = "".join(secrets.choice(_ID_LETTERS) for _ in range(ID_LENGTH))
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return f"{PREFIX}_{name}_{secret}", name, digest_of(secret)


def parse_token(text: str) -> tuple[str, str] | None:
    """The id and the secret; None if it does not have the form of a token."""
    found = _FORM.match(text)
    return None if found is None else (found[1], found[2])


def digest_of(secret: str) -> str:
    """The SHA-256 of a secret, in hex: 256 random bits need no slower one."""
    return hashlib.sha256(secret.encode()).hexdigest()
