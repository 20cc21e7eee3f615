"""Which stores of a cluster take no new messages, and why."""

from __future__ import annotations

from typing import Any, NamedTuple

from tallystick.core.errors import TallystickError
from tallystick.link import Link


class StoreTroubles(NamedTuple):
    """Reasons, by id.

    Attributes:
        stores: the stores that take no new messages.
        owners: the brokers that did not answer for their stores.
    """

    stores: dict[str, str]
    owners: dict[str, str]


def store_troubles(broker: Link, view: dict[str, Any]) -> StoreTroubles:
    """The broker that was asked knows about its own stores; for each of the others it asks the owner. An owner that
    does not answer is asked once."""
    found = StoreTroubles({}, {})
    for store in view["stores"]:
        reason, owner = store.get("trouble", ""), store["owner"]
        if not reason and store["url"] and owner != view["broker"] and owner not in found.owners:
            try:
                reason = broker.ready(store["id"])
            except TallystickError as error:
                found.owners[owner] = error.detail
        if reason:
            found.stores[store["id"]] = reason
    return found
