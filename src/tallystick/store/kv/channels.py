"""Channels: every group, host and database has its own line of due checks or calls, so none waits behind another."""

from __future__ import annotations

from tallystick.core.errors import TooLarge
from tallystick.core.urls import host_place
from tallystick.store.kv import keys
from tallystick.store.kv.batch import Batch
from tallystick.store.protocol import Channel


def channel_name(via: str, target: str, group: str) -> str:
    if via == "group":
        return group
    if via in ("database", "none"):
        return target
    return host_place(target)


def check_room(batch: Batch, via: str, target: str, group: str) -> None:
    """Refuse a new channel over the limit, before anything of the request has changed."""
    most = batch.settings.limits.groups
    if len(batch.catalog.channels) >= most and (via, channel_name(via, target, group)) not in batch.catalog.channels:
        raise TooLarge(
            f"{channel_name(via, target, group)!r} would exceed the limit of {most} groups and hosts to ask or call",
            field="calls" if via == "call" else "group",
        )


def channel_for(batch: Batch, via: str, target: str, group: str) -> Channel:
    name = channel_name(via, target, group)
    known = batch.catalog.channels.get((via, name))
    if known is not None:
        return known
    batch.counters.channels += 1
    channel = Channel(batch.counters.channels, via, name)
    batch.catalog.channels[(via, name)] = channel
    batch.put("index", keys.CHANNEL.key(via, name), keys.u32(channel.id))
    return channel
