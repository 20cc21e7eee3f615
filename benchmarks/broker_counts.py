"""What a broker says of its work: how often it was asked, and what can be read."""

from __future__ import annotations

import re
import time
import urllib.request

from tallystick.link import Link

PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.0005
_BATCHES = re.compile(rb'^tallystick_http_requests_total\{route="/v1/batch",[^}]*\} (\S+)$', re.MULTILINE)


def batch_requests(url: str) -> int:
    """How many requests with clients' operations the broker has answered."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:  # noqa: S310 - our own broker
        return sum(int(float(count)) for count in _BATCHES.findall(answer.read()))


def wait_until_visible(url: str, topic: str, messages: int) -> None:
    """Stay until so many messages of a topic can be read. A block may return before its own can."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with Link(url) as broker:
        while (visible := sum(broker.get("topics", topic)["ends"])) != messages:
            if visible > messages or time.monotonic() > deadline:
                raise RuntimeError(f"{topic} has {visible:,} messages, not the {messages:,} that were sent")
            time.sleep(_LOOK_SECONDS)
