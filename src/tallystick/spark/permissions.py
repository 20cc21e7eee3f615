"""What the token of a job may read: lists and tables leave out the rest, and a missing row looks like a loss.

The driver asks the broker (`GET /v1/whoami`) before a job reads anything.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from tallystick.core.access import Grant, Permission, covers
from tallystick.core.errors import Forbidden, NotFound
from tallystick.core.wire import CallerView
from tallystick.link import Link

_SEE_GROUPS: tuple[Permission, ...] = ("consume", "read", "operate")


class Permissions(Struct, frozen=True):
    """The grants of a caller. None: the broker does not check access, or is too old to name the grants."""

    name: str = ""
    grants: tuple[Grant, ...] | None = None

    def hidden(self, topics: Iterable[str] = ()) -> str:
        """What this caller may not read, as a sentence; empty if it may read every group and these topics (default:
        every topic)."""
        if self.grants is None:
            return ""
        names = tuple(topics)
        whole = [grant for grant in self._having("read") if "*" in grant.groups]
        if any("*" in grant.topics for grant in whole):
            return ""
        if names and all(any(covers(grant.topics, name) for grant in whole) for name in names):
            return ""
        reads = self._having("read")
        wanted = f"topics {', '.join(names)}" if names else "every topic"
        return (
            f"{self.name!r} may not read {wanted} and every group (it may read topics: "
            f"{_patterns(grant.topics for grant in reads)}; groups: {_patterns(grant.groups for grant in reads)})"
        )

    def may(self, permission: Permission, topic: str) -> bool:
        return self.grants is None or any(covers(grant.topics, topic) for grant in self._having(permission))

    def sees_every_topic(self) -> bool:
        return self.grants is None or any("*" in grant.topics for grant in self.grants)

    def sees_every_group_of(self, topic: str) -> bool:
        """Whether the list of consumer groups leaves out none that reads this topic."""
        grants = [grant for one in _SEE_GROUPS for grant in self._having(one)]
        return self.grants is None or any("*" in grant.groups and covers(grant.topics, topic) for grant in grants)

    def sees_transactions_of(self, groups: Iterable[str]) -> bool:
        """Whether the table of transactions leaves out none of these producer groups (none: of all groups)."""
        if self.grants is None:
            return True
        patterns, names = self.groups_for("read"), tuple(groups)
        return "*" in patterns or (bool(names) and all(covers(patterns, name) for name in names))

    def groups_for(self, permission: Permission) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for grant in self._having(permission) for name in grant.groups))

    def _having(self, permission: Permission) -> list[Grant]:
        return [grant for grant in self.grants or () if grant.has(permission)]


def permissions_at(link: Link) -> Permissions:
    try:
        caller = msgspec.convert(link.get("whoami"), CallerView)
    except (NotFound, msgspec.ValidationError):  # a broker of another release
        return Permissions()
    return Permissions() if caller.kind == "open" else Permissions(caller.name, tuple(caller.grants))


def require_all(permissions: Permissions, job: str, topics: Iterable[str] = ()) -> None:
    """Refuse a job that would take what this caller may not read for missing."""
    if hidden := permissions.hidden(topics):
        raise Forbidden(
            f"token: {hidden}. {job} would report the hidden transactions, messages and groups as missing. Use a token "
            "with the permission `read` on every topic and every group in one grant (role reader, without topics= and "
            "groups=)",
            field="token",
        )


def _patterns(some: Iterable[tuple[str, ...]]) -> str:
    return ", ".join(dict.fromkeys(name for names in some for name in names)) or "none"
