"""Messages for later, messages that fail, and where they end up.

tallystick serve &
python examples/delayed_and_dead_letters.py
"""

import os
import sys
import time

import tallystick

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TALLYSTICK_URL", "http://127.0.0.1:7440")


def delayed(ts: tallystick.Client) -> None:
    began = time.monotonic()
    ts.send("example.reminders", "wake up", delay=1)
    (message,) = ts.receive("example.reminders", "example.clock", wait=10)
    ts.ack("example.clock", message)
    print(f"{message.text!r} came after {time.monotonic() - began:.0f} s")


def dead_letters(ts: tallystick.Client) -> None:
    @ts.subscribe("example.orders-in", group="example.kitchen", max_attempts=2)
    def cook(message: tallystick.Message) -> None:
        raise ValueError(f"cannot cook {message.text}")

    ts.send("example.orders-in", "a stone")
    ts.start()
    # After `max_attempts` deliveries the message is in the dead-letter topic of its group, with the reason.
    (letter,) = ts.receive("dlq.example.kitchen", "example.operator", wait=20)
    ts.ack("example.operator", letter)
    print(f"dead after {letter.header('dead-attempts')} attempts: {letter.header('dead-reason')}")


if __name__ == "__main__":
    with tallystick.Client(URL) as ts:
        delayed(ts)
        dead_letters(ts)
