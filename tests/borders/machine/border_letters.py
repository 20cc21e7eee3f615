"""Messages to handlers: what a handler does with each, and how all of them are delivered at the end of a history."""

from __future__ import annotations

from typing import Any

from border_drivers import FAULTS
from border_hand import Hand
from border_model import Letter
from border_play import Oops, Play

Way = tuple[str, str, int]
"""By inbox or by offset; what the handler is given; in which place its connections are."""
WAYS: list[Way] = [
    ("inbox", "conn", 0),
    ("inbox", "tx", 1),
    ("inbox", "outbox", 0),
    ("offset", "conn", 1),
    ("offset", "tx", 0),
    ("offset", "outbox", 1),
]
ENDINGS = ("return", "return", "raise", "lost before", "lost after")


def write(play: Play, way: Way, steps: list[str], ending: str) -> None:
    play.letters.append(Letter(f"{play.name}-letter{len(play.letters)}", way, steps, ending))


class Postman:
    """Delivers the letters of a play, each way with a topic, a group and a handler of its own."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._letters: dict[str, Letter] = {}
        self.ways = list(dict.fromkeys(letter.way for letter in play.letters))
        for way in self.ways:
            # The last one of each way does nothing out of the ordinary: what was left undone before it shows with it.
            write(play, way, ["insert"], "return")

    def start(self) -> None:
        for number, way in enumerate(self.ways):
            self._subscribe(way, number)
            self._play.client.create_topic(self._topic(way), queues=1)
            for letter in self._play.letters:
                if letter.way == way:
                    self._letters[letter.name] = letter
                    self._play.client.send(self._topic(way), letter.name)
        if self.ways:
            self._play.client.start()

    def waiting(self) -> list[str]:
        """The ways on which something is not done yet."""
        return [f"letters by {way}" for way in self.ways if not self._done(way)]

    def noted(self, letter: Letter) -> bool:
        """Whether the inbox or the stored offset knows the letter."""
        known = self._known(letter.way)
        return letter.id in known if letter.way[0] == "inbox" else any(letter.offset < int(end) for end in known)

    def _known(self, way: Way) -> set[Any]:
        what = "message_id from tallystick_inbox" if way[0] == "inbox" else "next_offset from tallystick_offset"
        sql = f"select {what} where consumer_group = '{self._group(way)}'"
        return {value for (value,) in self._play.kind.select(way[2], sql)}

    def _done(self, way: Way) -> bool:
        if way[0] == "inbox":
            return not self._play.client.offsets(self._group(way), self._topic(way)).lag
        return self.noted([letter for letter in self._play.letters if letter.way == way][-1])

    def _topic(self, way: Way) -> str:
        return f"in-{self._play.name}-{'-'.join(map(str, way))}"

    def _group(self, way: Way) -> str:
        return f"readers-{self._play.name}-{'-'.join(map(str, way))}"

    def _subscribe(self, way: Way, number: int) -> None:
        by, shape, place = way
        variants = self._play.kind.handler_variants
        variant = variants[number % len(variants)]

        def with_connection(message: Any, conn: Any) -> None:
            self._handle(message, conn, None)

        def with_transaction(message: Any, conn: Any, tx: Any) -> None:
            self._handle(message, conn, tx)

        self._play.client.subscribe(
            self._topic(way),
            group=self._group(way),
            exactly_once=lambda: self._play.open_seat(place, variant).conn,
            by=by,  # type: ignore[arg-type]
            concurrency=1,
            mode="outbox" if shape == "outbox" else "check-back",
        )(with_connection if shape == "conn" else with_transaction)

    def _handle(self, message: Any, conn: Any, tx: Any) -> None:
        letter = self._letters[message.value.decode()]
        letter.id, letter.offset = message.id, message.offset
        hand = self._hand(letter, conn, tx)
        first = len(letter.attempts) == 1
        for step in letter.steps if first else ["insert", "send"]:
            hand.do(step)
        if tx is not None and hand.attempt.sends:
            hand.attempt.gid = tx.gid
        if first and letter.ending == "raise":
            raise Oops("not today")
        seal = hand.insert()
        if seal in hand.attempt.journal.held:
            letter.seals[hand.attempt.name] = seal
        if first and letter.ending in FAULTS:
            self._play.kind.arm(hand.seat, letter.ending)

    def _hand(self, letter: Letter, conn: Any, tx: Any) -> Hand:
        seat = next(seat for seat in self._play.seats if seat.conn is conn)
        attempt = self._play.new_attempt("outbox" if letter.way[1] == "outbox" else "late", seat)
        self._play.kind.disarm(seat)
        attempt.letter = letter.name
        attempt.journal.begun()
        letter.attempts.append(attempt)
        return Hand(self._play, self._play.kind, seat, attempt, tx, self._play.topic)
