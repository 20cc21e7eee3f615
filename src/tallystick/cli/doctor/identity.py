"""Who the broker takes this command for, and what to do if that is nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from tallystick.cli.doctor.finding import Finding
from tallystick.cli.output import number_of, span
from tallystick.core.errors import Forbidden, NotFound, TallystickError, Unauthenticated
from tallystick.core.token_records import TokenView, admins_made_while_open
from tallystick.link import Link

SOON_SECONDS = 7 * 24 * 3600

ADVICE: dict[type[TallystickError], str] = {
    Unauthenticated: "name the file of a token that the broker knows with --token-file, or set TALLYSTICK_TOKEN; an "
    "admin makes one with `tallystick tokens create`",
    Forbidden: "an admin can give this token the right, or make another one with `tallystick tokens create`",
}


def look_at_identity(broker: Link) -> Finding:
    """Raises `Unauthenticated` of a broker that does not know us: it would answer nothing else, either."""
    try:
        me = broker.get("whoami")
    except NotFound:
        return Finding("identity", "ok", "this broker is from before there was access control")
    if me["kind"] == "open":
        return Finding("identity", "ok", "access control is off: whoever reaches the broker may do everything")
    told = f"{me['name']} ({me['kind']}): {'; '.join(map(_grant, me.get('grants', ())))}"
    expires_at = me.get("expires_at") or 0
    left = expires_at / 1000 - time.time()
    if expires_at and left < SOON_SECONDS:
        return Finding("identity", "note", f"{told}; it expires in {span(max(0.0, left))}", "have a new token made")
    return Finding("identity", "ok", told)


def look_at_tokens(broker: Link) -> Iterator[Finding]:
    """Who made the tokens that there are. Nothing to an asker who is not to see them."""
    try:
        tokens = msgspec.convert(broker.get("tokens")["tokens"], list[TokenView])
    except (Forbidden, NotFound):
        return
    if doubtful := admins_made_while_open(tokens, time.time_ns() // 1_000_000):
        text = f"may do everything, and were made by anybody, while access control was off: {', '.join(doubtful)}"
        yield Finding("tokens", "note", text, "revoke what is not yours: `tallystick tokens revoke NAME`")
    elif tokens:
        makers = ", ".join(sorted({one.created_by for one in tokens}))
        yield Finding("tokens", "ok", f"{number_of(len(tokens), 'token')}, made by {makers}")


def turned_away(error: TallystickError) -> Finding:
    return Finding("identity", "problem", error.detail, ADVICE[type(error)])


def _grant(grant: dict[str, Any]) -> str:
    limits = [
        f"{kind} {', '.join(patterns)}"
        for kind in ("topics", "groups", "hosts")
        if (patterns := grant.get(kind)) and list(patterns) != ["*"]
    ]
    return f"{', '.join(grant['roles'])}{' on ' + ', '.join(limits) if limits else ''}"
