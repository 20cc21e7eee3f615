"""Who may, and what is written down: tokens, guards and the audit log, as a store must keep them."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

AUDIT_RETENTION = 20_000
MOST_TOKENS = 2
Deed = tuple[int, str, str]  # when, what, to what


@dataclass
class AccessModel:
    tokens: dict[str, str] = field(default_factory=dict)  # ids by name
    deeds: list[Deed] = field(default_factory=list)  # the oldest first

    def put_token(self, name: str, token_id: str) -> str:
        if name in self.tokens:
            return "duplicate" if self.tokens[name] == token_id else "conflict"
        if len(self.tokens) >= MOST_TOKENS:
            return "too_large"
        self.tokens[name] = token_id
        return "ok"

    def drop_token(self, name: str, token_id: str) -> str:
        if name not in self.tokens or token_id not in ("", self.tokens[name]):
            return "not_found"
        del self.tokens[name]
        return "ok"

    def write_down(self, said: str, deed: Deed) -> None:
        """A deed that was done, or was done before; nothing of one that was refused."""
        if said in ("ok", "duplicate"):
            self.deeds.append(deed)

    def expire(self, now: int) -> None:
        self.deeds = [deed for deed in self.deeds if deed[0] > now - AUDIT_RETENTION]


def may_touch(patterns: tuple[str, ...], group: str) -> bool:
    return any(fnmatchcase(group, pattern) for pattern in patterns)
