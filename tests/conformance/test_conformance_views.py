"""What people and programs see: counts, the age of the oldest, pages of transactions."""

from __future__ import annotations

import engines
import pytest
from engines import MakePlace, Place, message, prepare

from tallystick.core.errors import InvalidRequest, NotFound
from tallystick.core.ops import AnswerChecks, Check, Commit, PreparePart, Rollback, Send
from tallystick.store.protocol import ClaimChecks, FailChecks, Receive

make_place = engines.make_place
place = engines.place


def test_counts_follow_what_happens(place: Place) -> None:
    counts = place.store.counts()
    assert (counts.pending, counts.parked, counts.parts, counts.leased, counts.oldest_pending_at) == (0, 0, 0, 0, None)
    place.write(*[prepare(f"t{number}") for number in range(5)])
    place.do(Commit("t0"))
    place.do(Rollback("t1"))
    place.do(Rollback("stranger"))
    place.do(PreparePart("p", [message()]))
    place.do(Receive("g", "orders", 10, 1_000))
    counts = place.store.counts()
    assert (counts.pending, counts.parts, counts.leased) == (3, 1, 1)
    assert {name: place.totals[name] for name in ("prepared", "committed", "rolled_back")} == {
        "prepared": 5,
        "committed": 1,
        "rolled_back": 2,
    }
    place.reopen()
    assert place.store.counts() == counts


def test_no_pending_transaction_is_older_than_the_oldest_that_is_told(place: Place) -> None:
    """Old barrier rows are removed by this time: it may be too early, never too late."""
    created: dict[str, int] = {}
    delays = [0, 60_000, 10_000, 3_600_000, 0, 5]
    for number, delay in enumerate(delays):
        gid = f"t{number}"
        place.do(prepare(gid, group=f"group-{number % 2}", check=Check(after_ms=delay, max_checks=3)))
        created[gid] = place.now
        place.wait(1_000)
    for step in range(12):
        told = place.store.counts().oldest_pending_at
        assert told is not None
        assert told <= min(created.values())
        place.wait(20_000)
        claimed = place.claim(ClaimChecks([one.id for one in place.store.channels()], 10, 1_000))
        place.do(FailChecks(dict.fromkeys(claimed, "x")))
        if step % 2 and len(created) > 1:
            gid = sorted(created)[0]
            place.do(AnswerChecks({gid: "committed"}))
            del created[gid]
        if step == 6:
            place.reopen()
    place.write(*[Rollback(gid) for gid in created])
    assert place.store.counts().oldest_pending_at is None


def everything(place: Place, limit: int, state: str | None = None, group: str | None = None) -> list[tuple[str, str]]:
    found, after = [], None
    while True:
        page, after = place.store.scan(state, group, after, limit)
        assert len(page) <= limit
        found += [(one.gid, one.state) for one in page]
        if after is None:
            return found


@pytest.fixture
def mixed(place: Place) -> tuple[Place, dict[str, str]]:
    states: dict[str, str] = {}
    for number in range(6):
        place.do(prepare(f"parked-{number}", group=f"g{number % 2}", check=Check(after_ms=0, max_checks=1)))
        states[f"parked-{number}"] = "parked"
    claimed = place.claim(ClaimChecks([one.id for one in place.store.channels()], 10, 1_000))
    place.do(FailChecks(dict.fromkeys(claimed, "x")))
    for number in range(7):
        place.do(prepare(f"open-{number}", group=f"g{number % 2}"))
        states[f"open-{number}"] = "prepared"
    for number in range(9):
        gids = [f"done-{number}-{one}" for one in range(3)]
        place.write(*[prepare(gid, group=f"g{number % 2}") for gid in gids])
        place.write(Commit(gids[0]), Rollback(gids[1]), Commit(gids[2]))
        states |= {gids[0]: "committed", gids[1]: "rolled_back", gids[2]: "committed"}
    place.do(Send([message()], gid="sent"))
    states["sent"] = "committed"
    return place, states


@pytest.mark.parametrize("limit", [1, 2, 5, 1_000])
@pytest.mark.parametrize("state", [None, "prepared", "parked", "committed", "rolled_back"])
def test_pages_together_show_every_transaction_once(
    mixed: tuple[Place, dict[str, str]], state: str | None, limit: int
) -> None:
    place, states = mixed
    found = everything(place, limit, state)
    assert len(found) == len(set(found))
    assert dict(found) == {gid: known for gid, known in states.items() if state in (None, known)}


@pytest.mark.parametrize("limit", [1, 4, 1_000])
def test_pages_can_be_of_one_group(mixed: tuple[Place, dict[str, str]], limit: int) -> None:
    place, states = mixed
    both = [everything(place, limit, None, group) for group in ("g0", "g1")]
    assert sorted(both[0] + both[1]) == sorted((gid, state) for gid, state in states.items() if gid != "sent")
    assert everything(place, limit, "parked", "g1") == [(f"parked-{n}", "parked") for n in (1, 3, 5)]
    assert everything(place, limit, None, "nobody") == []


def test_the_newest_outcomes_come_first(mixed: tuple[Place, dict[str, str]]) -> None:
    place, _ = mixed
    page, _ = place.store.scan("committed", None, None, 3)
    assert [one.gid for one in page] == ["sent", "done-8-2", "done-8-0"]


def test_a_page_token_that_is_none_is_refused(mixed: tuple[Place, dict[str, str]]) -> None:
    place, _ = mixed
    words = ["", "x", "0", ":", "0:zz", "9:00", "-1:", "-1:64", "0:00", "0:ff", "1:6f", "2:64", "2:6f.x", "2:6f.-1"]
    words += ["2:.", "0:\u0663", "\u0663:", "0: 64", "1:64 00", "0:50.5", f"2:{'6f' + '00' * 8}.{'9' * 20}"]
    for after in words:
        for state in (None, "prepared", "parked", "committed"):
            with pytest.raises(InvalidRequest) as refused:
                place.store.scan(state, None, after, 5)
            assert refused.value.field == "after"


def test_transactions_and_groups_that_do_not_exist(place: Place) -> None:
    assert place.store.transaction("stranger") is None
    assert place.store.topic("nothing") is None
    assert place.store.groups() == []
    with pytest.raises(NotFound):
        place.store.groups("nobody")
    with pytest.raises(NotFound):
        place.store.stored_offsets("nobody", "nothing")


def test_a_page_that_filters_much_away_ends_early_and_goes_on(
    make_place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tallystick.store.kv import views

    monkeypatch.setattr(views, "EXAMINED_PER_PAGE", 4)
    place = make_place()
    place.write(*[prepare(f"t{number:02}", group="rare" if number == 19 else "usual") for number in range(20)])
    page, after = place.store.scan(None, "rare", None, 5)
    assert page == []
    assert after is not None
    assert everything(place, 5, None, "rare") == [("t19", "prepared")]
