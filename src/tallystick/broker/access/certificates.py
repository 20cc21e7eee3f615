"""Client certificates: the names in them, mapped to what their holders may do."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.core.access import CertificateGrant, Evidence, Identity, covers

MOST_KEPT = 1_000


class CertificatesWay:
    """The first of the configuration's entries that fits one of a certificate's names counts. That the certificate is
    right, and of a CA that counts, was found when the connection was made."""

    def __init__(self, entries: Sequence[CertificateGrant]) -> None:
        self._entries = [((_spelled(entry.name),), (entry.grant,), entry.limits) for entry in entries]
        self._found: dict[tuple[str, ...], Identity] = {}

    async def identity(self, evidence: Evidence) -> Identity | None:
        """The same object for the same certificate: what it may is remembered with that."""
        found = self._found.get(evidence.certificate)
        if found is None:
            found = self._of(evidence.certificate)
            if found is not None:
                if len(self._found) >= MOST_KEPT:  # certificates are made anew all the time
                    self._found.clear()
                self._found[evidence.certificate] = found
        return found

    def _of(self, certificate: tuple[str, ...]) -> Identity | None:
        for pattern, grants, limits in self._entries:
            for name in certificate:
                if covers(pattern, _spelled(name)):
                    return Identity(name, "certificate", grants, limits)
        return None


def _spelled(name: str) -> str:
    """Hosts are written in letters of either size, and mean the same."""
    return name.lower().replace("dns:", "DNS:", 1) if name.startswith("DNS:") else name
