"""Client certificates: the names in them, mapped to what their holders may do."""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.core.access import CertificateGrant, Evidence, Identity, covers


class CertificatesWay:
    """The first of the configuration's entries that fits one of a certificate's names counts. That the certificate is
    right, and of a CA that counts, was found when the connection was made."""

    def __init__(self, entries: Sequence[CertificateGrant]) -> None:
        self._entries = [((_spelled(entry.name),), entry.grant) for entry in entries]

    async def identity(self, evidence: Evidence) -> Identity | None:
        for pattern, grant in self._entries:
            for name in evidence.certificate:
                if covers(pattern, _spelled(name)):
                    return Identity(name, "certificate", (grant,))
        return None


def _spelled(name: str) -> str:
    """Hosts are written in letters of either size, and mean the same."""
    return name.lower().replace("dns:", "DNS:", 1) if name.startswith("DNS:") else name
