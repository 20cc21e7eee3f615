"""What the claims of somebody's JWT permit: rules of the operator's, each for one value of one claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from msgspec import Meta

from tallystick.core.access import LimitedGrant

LEEWAY_MS = 30_000
"""By which the clock of whoever makes JWTs may differ from ours."""
ClaimName = Annotated[
    str, Meta(min_length=1, max_length=256, description="a claim; a dot leads into it: realm_access.roles")
]


class ClaimGrant(LimitedGrant, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A grant for those whose `claim` is, or has among several, `value`."""

    claim: ClaimName
    value: Annotated[str, Meta(min_length=1, max_length=1024)]


def granted_by(claims: Mapping[str, Any], rules: Iterable[ClaimGrant]) -> tuple[ClaimGrant, ...]:
    """Those of the rules that fit somebody with these claims: all of them count together."""
    return tuple(rule for rule in rules if rule.value in values_of(claims, rule.claim))


def values_of(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The values of a claim: those of a list, the words of a text (as in `scope`) and the text itself."""
    found = claim_of(claims, name)
    if isinstance(found, str):
        return (found, *found.split())
    if isinstance(found, list):
        return tuple(one for one in found if isinstance(one, str))
    return ()


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """The claim of this name; else, where the name has dots, what they lead to. None if there is none."""
    if name in claims:  # names with dots are common: https://shop.example/roles
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found
