"""The end of a history: everything settles, is looked at, and compared with what must be true."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from border_kinds import PLACES
from border_letters import Postman
from border_model import broken_blocks, broken_letter, broken_outcomes
from border_play import Play

from tallystick.client.transactions.prepared import ID, SIGN
from tallystick.core.errors import NotFound

LOOK_SECONDS = 0.02
_OUTCOMES = {"msg": "committed", "rollback": "rolled_back"}


def broken(play: Play, patience: float) -> list[str]:
    """What must not be; `patience` is how many seconds anything that is still to happen is waited for."""
    play.end_all()
    postman = Postman(play)
    postman.start()
    found = _until_nothing_is_left(postman.waiting, patience)
    found += _until_nothing_is_left(lambda: _pending(play), patience)
    rows = {row for (row,) in _both(play, "select note from ledger")}
    visible = _visible(play)
    barrier = _barrier(play)
    found += play.fates.broken(rows)
    blocks = [one for one in play.attempts if not one.letter]
    found += broken_blocks(blocks, visible, barrier)
    found += broken_outcomes(play.attempts, barrier, {gid: _state(play, gid) for gid in _gids(play)})
    for letter in play.letters:
        found += broken_letter(letter, rows, visible, noted=postman.noted(letter))
    return found


def _until_nothing_is_left(look: Callable[[], list[str]], patience: float) -> list[str]:
    deadline = time.monotonic() + patience
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return [f"{one}: not settled" for one in left]


def _pending(play: Play) -> list[str]:
    """Transactions without an outcome, and what waits in an outbox."""
    halves = [gid for gid in _gids(play) if _state(play, gid) not in (None, "committed", "rolled_back")]
    return halves or [f"outbox row {gid}" for (gid,) in _both(play, "select gid from tallystick_outbox")]


def _gids(play: Play) -> list[str]:
    return list(dict.fromkeys(one.gid for one in play.attempts if one.gid and one.mode in ("late", "early")))


def _state(play: Play, gid: str) -> str | None:
    try:
        return play.client.transaction_state(gid).state
    except NotFound:
        return None


def _both(play: Play, sql: str) -> list[tuple[Any, ...]]:
    return [row for place in PLACES for row in play.kind.select(place, sql)]


def _barrier(play: Play) -> dict[str, str]:
    """The outcome of each gid; one that is committed in a place is so, whatever another place may say."""
    told: dict[str, str] = {}
    for gid, reason in _both(play, "select gid, reason from tallystick_barrier where op = 'msg'"):
        if told.get(gid) != "committed":
            told[gid] = _OUTCOMES[reason]
    return told


def _visible(play: Play) -> set[str]:
    """The messages that a consumer would act upon. In consumer-dedup mode these are the ones with an outcome."""
    try:
        queues = play.client.topic(play.topic).queues
    except NotFound:
        return set()
    messages = [one for queue in range(queues) for one in play.client.fetch(play.topic, queue, 0).messages]
    prepared = {one.header(ID): one.value.decode() for one in messages if one.header(SIGN) == "prepare"}
    return {*_plain(messages), *(prepared[one.header(ID)] for one in messages if one.header(SIGN) == "commit")}


def _plain(messages: Iterable[Any]) -> set[str]:
    return {one.value.decode() for one in messages if not one.header(SIGN)}
