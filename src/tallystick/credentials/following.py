"""Where a client goes that was not told to by its user: to addresses that a broker has named."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tallystick.core.addresses import broker_address

log = logging.getLogger("tallystick.client")

_told: set[str] = set()
"""Addresses of which the log has been told."""


def may_follow(given: Iterable[str], named: str) -> bool:
    """Whether to ask at an address that a broker has named. Who was given https alone does not go on without it: the
    token, and the messages, would be for everybody on the way to read. `given` are addresses as users write them."""
    address = broker_address(named)
    if address.scheme == "https" or address.loopback or any(broker_address(one).scheme != "https" for one in given):
        return True
    if address.text not in _told:
        _told.add(address.text)
        log.warning(
            "a broker says that there is one at %s, without TLS; it is not asked there, since all addresses that were "
            "given are https. Have the brokers name their https addresses (`advertise`)",
            address.authority,
        )
    return False
