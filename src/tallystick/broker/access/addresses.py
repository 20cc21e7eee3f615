"""Addresses: what those may who send no credentials, by where they come from: dtm's clients cannot send any."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from tallystick.core.access import AddressGrant, Evidence, Identity


class AddressesWay:
    def __init__(self, grants: Sequence[AddressGrant]) -> None:
        self._ranges = [
            (network, Identity(grant.name, "address", (grant.grant,), grant.limits))
            for grant in grants
            for network in map(ip_network, grant.addresses)
        ]

    async def identity(self, evidence: Evidence) -> Identity | None:
        address = _address(evidence.source)
        if address is None:
            return None
        return next((identity for network, identity in self._ranges if address in network), None)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return None  # no address at all: a socket of another kind
    # A listener on :: sees clients of the old protocol like this.
    return getattr(found, "ipv4_mapped", None) or found
