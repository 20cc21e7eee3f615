"""A process of bank B: credits each transfer exactly once.

python -m tallystick.demo.consumer --url http://127.0.0.1:7440 --bank b.db
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import tallystick
from tallystick.demo.banks import CONSUMERS, TOPIC, Transfer, connect, credit
from tallystick.demo.worker import arguments

# How long the messages of a killed consumer stay invisible to the others.
INVISIBLE_SECONDS = 3.0
SLOW_SECONDS = 0.05


def main() -> None:
    given = arguments("A process of bank B.")
    client = tallystick.Client(given.url)

    def credit_once(message: tallystick.Message, connection: sqlite3.Connection) -> None:
        credit(connection, Transfer(**message.json()), message.id)

    def credit_again(message: tallystick.Message) -> None:
        """The mistake that the inbox is for: an effect that is committed apart from the word that it happened."""
        with closing(connect(given.bank)) as connection:
            connection.execute("begin immediate")
            credit(connection, Transfer(**message.json()), message.id)
            connection.execute("commit")
        time.sleep(SLOW_SECONDS)  # so that a kill finds something between effect and acknowledgement

    if given.sabotage:
        client.subscribe(TOPIC, group=CONSUMERS, invisible=INVISIBLE_SECONDS, concurrency=2)(credit_again)
    else:
        client.subscribe(
            TOPIC,
            group=CONSUMERS,
            invisible=INVISIBLE_SECONDS,
            concurrency=2,
            exactly_once=lambda: connect(given.bank),
        )(credit_once)
    with client:
        client.run()


if __name__ == "__main__":
    main()
