"""Which stores of a cluster take no new messages, and why."""

from __future__ import annotations

from typing import Any

from tallystick.core.errors import TallystickError
from tallystick.link import Link


def store_troubles(broker: Link, view: dict[str, Any]) -> dict[str, str]:
    """By store. The broker that was asked knows about its own stores; for each of the others it asks the owner. An
    owner that does not answer is asked once."""
    found: dict[str, str] = {}
    silent: set[str] = set()
    for store in view["stores"]:
        reason, owner = store.get("trouble", ""), store["owner"]
        if not reason and store["url"] and owner != view["broker"] and owner not in silent:
            try:
                reason = broker.ready(store["id"])
            except TallystickError as error:
                silent.add(owner)
                reason = error.detail
        if reason:
            found[store["id"]] = reason
    return found
