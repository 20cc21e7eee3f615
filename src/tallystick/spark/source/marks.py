"""How far a stream has come: what Spark keeps in the checkpoint and hands back.

Spark compares offsets as text, so that the same place must always be written in the same way: topics and queues in
order, queues as text. A topic's time of creation goes with it: one that was deleted and made again goes on where it
ended, but what had not been read by then is gone; and behind the same address there may be another broker by now.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tallystick.core.wire import TopicView

CREATED = "__created__"  # no topic can have this name, or the next: names begin with a letter or digit
PIN = "__start__"


class Mark(Struct, frozen=True):
    """The next offset of each queue, by topic, and when each topic was created."""

    queues: dict[str, dict[int, int]]
    created: dict[str, int]

    def written(self) -> dict[str, Any]:
        places = {topic: _in_order(self.queues[topic]) for topic in sorted(self.queues)}
        return {**places, CREATED: {topic: self.created[topic] for topic in sorted(self.queues)}}

    def begin(self, view: TopicView, queue: int) -> int:
        """Where to go on in a queue; one that is not here was added, or made anew, and is read from its first."""
        known = self.queues[view.name] if self.created.get(view.name) == view.created_at else {}
        return known.get(queue, view.begin(queue))

    def had_read_all(self, view: TopicView) -> bool:
        """Of the topic that was deleted before this one was made: it goes on exactly here. That it does not begin at 0
        shows that it is the same broker's."""
        places = self.queues[view.name]
        return any(view.begins) and all(offset == view.begin(queue) for queue, offset in places.items())


def read_mark(written: dict[str, Any]) -> Mark:
    queues = {topic: places for topic, places in written.items() if topic != CREATED}
    return Mark(
        {topic: {int(queue): offset for queue, offset in places.items()} for topic, places in queues.items()},
        dict(written.get(CREATED, {})),
    )


def ends(views: dict[str, TopicView]) -> Mark:
    return Mark(
        {topic: dict(enumerate(view.ends)) for topic, view in views.items()},
        {topic: view.created_at for topic, view in views.items()},
    )


def pin(kind: str) -> dict[str, str]:
    """Stands for a start that has not been looked up. Spark asks for it again when batch 0 is repeated, and stores only
    where a batch ends: so batch 0 reads nothing, and its end is the start."""
    return {PIN: kind}


def is_pin(written: dict[str, Any]) -> bool:
    return PIN in written


def _in_order(places: dict[int, int]) -> dict[str, int]:
    return {str(queue): places[queue] for queue in sorted(places)}
