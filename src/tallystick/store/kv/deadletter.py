"""The dead-letter topic of a group: where messages go that it could not handle."""

from __future__ import annotations

from tallystick.core.message import OutgoingMessage, StoredMessage
from tallystick.store.kv import topics
from tallystick.store.kv.batch import Batch


def dead_letter_topic(group: str) -> str:
    return f"dlq.{group}"[:127]


def bury(batch: Batch, group: str, message: StoredMessage, attempts: int, reason: str) -> None:
    """Append the message to the group's dead-letter topic, with where it came from and why."""
    name = dead_letter_topic(group)
    topic = topics.ensure(batch, name)
    headers = {
        **(message.headers or {}),
        "dead-topic": message.topic,
        "dead-queue": str(message.queue),
        "dead-offset": str(message.offset),
        "dead-attempts": str(attempts),
        "dead-reason": reason,
    }
    letter = OutgoingMessage(
        name, message.value, message.key, headers, message.tag, born_at=message.born_at or batch.now
    )
    batch.log.add(topic, letter, message.gid, message.sequence)
    batch.event("dead_letter", f"{group}:{message.topic}/{message.queue}/{message.offset}", reason)
