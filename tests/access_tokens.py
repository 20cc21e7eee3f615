"""Tokens for tests of access: made here, told to a broker by its configuration, and what to send with a request."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from raw_client import RawClient
from tallystick.core.tokens import new_token


class Token(NamedTuple):
    text: str
    table: dict[str, Any]

    @property
    def headers(self) -> dict[str, str]:
        return bearing(self.text)


def bearing(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def token(name: str, *roles: str, **more: Any) -> Token:
    """One that has these roles; `more` are fields of its table in the configuration."""
    text, number, digest = new_token()
    return Token(text, {"name": name, "id": number, "token_sha256": digest, "roles": list(roles), **more})


ROLES = ("producer", "consumer", "caller", "reader", "operator", "admin")
OWN = {role: token(role, role) for role in ROLES}
OTHER = {
    role: token(f"other-{role}", role, topics=["other.*"], groups=["other.*"], hosts=["other.example"])
    for role in ROLES
}
EXPIRED = token("late", "admin", expires_at=1)
TOKENS = (*OWN.values(), *OTHER.values(), EXPIRED)
ADMIN = OWN["admin"]
UNKNOWN = new_token()[0]
_FOREIGN_SECRET = ADMIN.text[:18] + UNKNOWN[18:]  # a known id, and not its secret
STRANGERS: dict[str, dict[str, str]] = {
    "no token": {},
    "unknown": bearing(UNKNOWN),
    "the secret of another": bearing(_FOREIGN_SECRET),
    "expired": bearing(EXPIRED.text),
    "malformed": bearing("nonsense"),
    "of another scheme": {"Authorization": f"Basic {ADMIN.text}"},
    "without a scheme": {"Authorization": ADMIN.text},
    "empty": {"Authorization": ""},
}


def revoked_token(client: RawClient, name: str = "left") -> dict[str, str]:
    """What somebody shows whose token the store has kept, who has used it, and who may do nothing any more."""
    made = client.request("POST", "/v1/tokens", json.dumps({"name": name, "roles": ["admin"]}), ADMIN.headers)
    shown = bearing(made.json()["token"])
    assert client.request("GET", "/v1/whoami", None, shown).json()["name"] == name
    assert client.request("DELETE", f"/v1/tokens/{name}", None, ADMIN.headers).status == 204
    return shown


def settings(*more: Token) -> dict[str, Any]:
    """Of a broker that knows them."""
    return {"auth": "tokens", "static_tokens": [one.table for one in (*TOKENS, *more)]}
