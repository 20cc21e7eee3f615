"""The archive beside the broker: offsets that the broker has trimmed, if the user has kept them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tallystick.core.wire import TopicView
from tallystick.spark.options import refused

if TYPE_CHECKING:
    from tallystick.spark.archive.layout import Archive

NOTHING = (0, 0)


class Archived:
    """The archive at the path of option 'archive'; without a path, an archive that has nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._archive: Archive | None = None
        self._covers: dict[str, dict[int, tuple[int, int]]] = {}

    def refresh(self) -> None:
        """Forget what is known of the archive: it grows while a stream runs."""
        self._covers.clear()

    def covered(self, view: TopicView, queue: int) -> tuple[int, int]:
        """The archived offsets of a queue, as [first, last)."""
        if not self._path:
            return NOTHING
        if view.name not in self._covers:
            self._check_identity(view)
            self._covers[view.name] = self._opened().covers(view.name)
        return self._covers[view.name].get(queue, NOTHING)

    def _check_identity(self, view: TopicView) -> None:
        """Offsets mean something only within one topic, and a name may have had several."""
        for manifest in self._opened().manifests(view.name)[-1:]:
            if manifest.created_at != view.created_at:
                raise refused(
                    "archive",
                    f"{self._path} holds another topic {view.name!r} than the broker: one was deleted and made again, "
                    f"or comes from another broker (created at {manifest.created_at} and {view.created_at})",
                )

    def first(self, view: TopicView, queue: int) -> int:
        """The earliest offset of a queue that is anywhere."""
        start, end = self.covered(view, queue)
        return min(start, view.starts[queue]) if start < end else view.starts[queue]

    def at_time(self, view: TopicView, queue: int, time: int) -> int:
        """The first offset stored at or after `time` of those that the broker no longer has; its start if none is."""
        start = view.starts[queue]
        if self.covered(view, queue) == NOTHING:
            return start
        return min(self._opened().offsets_at(view.name, time).get(queue, start), start)

    def read(self, topic: str, queue: int, start: int, end: int, columns: Sequence[str] | None) -> Iterator[Any]:
        return self._opened().read(topic, queue, start, end, columns)

    def _opened(self) -> Archive:
        if self._archive is None:
            from tallystick.spark.archive.layout import Archive

            self._archive = Archive(self._path)
        return self._archive
