"""What to do when messages that should be read are no longer there: fail, or say so and go on."""

from __future__ import annotations

import logging

from msgspec import Struct

from tallystick.core.errors import TallystickError

_log = logging.getLogger("tallystick.spark")


class DataLoss(TallystickError):
    """Messages that should have been read are gone."""

    code = "data_loss"


class Loss(Struct, frozen=True):
    """`fail` is the option failOnDataLoss."""

    fail: bool

    def report(self, what: str) -> None:
        """Raise, or write a warning where Spark keeps the logs of its Python processes."""
        if self.fail:
            raise DataLoss(f"{what}. To go on without them, set option 'failOnDataLoss' to 'false'")
        _log.warning("%s. Going on without them, as failOnDataLoss is false", what)

    def trimmed(self, topic: str, queue: int, gone: tuple[int, int], start: int, begin: int) -> None:
        first, after = gone
        why = "retention or a trim was faster than this reader"
        if first < begin:
            why = f"the topic was deleted and made again, and goes on at {begin}"
        self.report(
            f"{topic}/{queue}: offsets {first} to {after - 1} are gone ({after - first} messages); the broker keeps "
            f"offsets from {start} on ({why})"
        )

    def remade(self, topic: str, queue: int, gone: tuple[int, int]) -> None:
        self.report(
            f"{topic}/{queue}: offsets {gone[0]} to {gone[1] - 1} are gone: the topic was deleted and made again after "
            "it was looked at (or another broker serves the address by now)"
        )

    def cut(self, topic: str, queue: int, wanted: int, end: int) -> None:
        self.report(
            f"{topic}/{queue}: offsets {end} to {wanted - 1} are gone; the broker's queue ends at {end} "
            "(was its data directory restored from a copy?)"
        )

    def deleted(self, topic: str, anew: bool) -> None:
        since = "deleted and made again" if anew else "deleted"
        self.report(f"{topic}: the topic was {since} since it was last read; messages not read by then are gone")
