"""A consumer: has the effect of each message of its topic in its own database, exactly once.

Each has a topic of its own, since its database is its own: what one consumer has seen no other knows.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import tallystick
from tallystick.chaos.journal import JournalWriter
from tallystick.chaos.ledgers import CONSUMERS, TOPIC, connect
from tallystick.chaos.modes import Mode
from tallystick.chaos.worker import given_settings
from tallystick.client.consumers.subscription import By
from tallystick.demo.worker import until_told

# How long the messages of a killed consumer stay invisible.
INVISIBLE_SECONDS = 3.0
COUNT_SECONDS = 0.3
SLOW_SECONDS = 0.02
# By turns, so that every kind of mark is struck.
WAYS: tuple[tuple[By, int], ...] = (("inbox", 1), ("offset", 1), ("inbox", 20), ("offset", 20))


def main() -> None:
    settings = given_settings()
    told = until_told()
    journal = JournalWriter(settings.journal)
    journal.note("start")
    topic, group = f"{TOPIC}{settings.number}", f"{CONSUMERS}{settings.number}"
    by, batch = WAYS[settings.number % len(WAYS)]

    def open_database() -> sqlite3.Connection:
        return connect(settings.database)

    def effect_once(message: tallystick.Message, connection: sqlite3.Connection) -> None:
        note_effect(connection, message, settings.mode)

    def effect_again(message: tallystick.Message) -> None:
        """The mistake that the inbox is for: an effect that is committed apart from the word that it happened."""
        with closing(open_database()) as connection:
            note_effect(connection, message, settings.mode)
        time.sleep(SLOW_SECONDS)

    with tallystick.Client(settings.urls, group=group) as client:
        if settings.sabotage == "inbox":
            client.subscribe(topic, invisible=INVISIBLE_SECONDS, concurrency=2)(effect_again)
        else:
            client.subscribe(
                topic, exactly_once=open_database, by=by, batch=batch, invisible=INVISIBLE_SECONDS, concurrency=2
            )(effect_once)
        client.start()
        while not told.wait(COUNT_SECONDS):
            journal.note("duplicates", client.stats.duplicates)
        client.stop()


def note_effect(connection: sqlite3.Connection, message: tallystick.Message, mode: Mode) -> None:
    """Part of the transaction in which the message is marked."""
    # In this mode the mark goes by the gid that message and outcome share.
    identity = f"{message.gid}:{message.sequence}" if mode == "consumer-dedup" else message.id
    place = (message.store, message.topic, message.queue, message.offset)
    connection.execute("insert into effect values (?, ?, ?, ?, ?, ?, ?)", (message.text, message.id, identity, *place))


if __name__ == "__main__":
    main()
