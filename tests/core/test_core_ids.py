"""Identifiers: unique across threads and processes, and a gid that names its store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.ids import new_gid, new_lease_id, new_member_id, new_store_id, store_of_gid
from tallystick.core.names import check_gid, check_name

FORM = 11 + 20  # hex digits of the time, hex digits of chance


def test_gids_are_unique_across_threads() -> None:
    made: list[list[str]] = [[] for _ in range(8)]
    begin = threading.Barrier(len(made))

    def make(mine: list[str]) -> None:
        begin.wait()
        mine += [new_gid("store") for _ in range(5_000)]

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({gid for mine in made for gid in mine}) == 8 * 5_000


def in_a_child(count: int) -> list[str]:
    """What a forked child makes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with os.fdopen(writing, "w") as out:
                out.write("\n".join(new_gid() for _ in range(count)))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as incoming:
        made = incoming.read().split()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return made


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of newer Pythons, where there are threads
def test_gids_are_unique_across_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    # With the time standing still, chance alone has to keep them apart.
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    new_gid()  # from here on there is chance in store, which a child must not share
    children = [gid for _ in range(4) for gid in in_a_child(300)]
    assert len(children) == 1_200
    own = [new_gid() for _ in range(1_000)]
    assert len({*children, *own}) == 2_200


def test_gids_sort_by_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for moment in (1, 9, 10, 255, 256, 1_700_000_000_000, 1_700_000_000_001, 2**43):
        monkeypatch.setattr("time.time_ns", lambda moment=moment: moment * 1_000_000)
        made.append(new_gid("store"))
    assert made == sorted(made)


def test_a_gid_names_its_store() -> None:
    for _ in range(100):
        store = new_store_id()
        gid = new_gid(store)
        assert store_of_gid(gid) == store
        assert gid.removeprefix(f"{store}-").isalnum()
        assert len(gid) == len(store) + 1 + FORM
        check_gid(gid)


def test_a_gid_without_a_store_names_none() -> None:
    gid = new_gid()
    assert len(gid) == FORM
    assert store_of_gid(gid) == ""


@pytest.mark.parametrize("gid", ["", "order-17", "-", "a-", "-b", "order", "2024-01-01:42", "a" * 128])
def test_gids_of_the_users_own_making_name_no_store(gid: str) -> None:
    assert store_of_gid(gid) == ""


@given(st.text(alphabet="0123456789abcdef", min_size=1, max_size=16))
def test_every_store_name_without_a_dash_comes_back(store: str) -> None:
    assert store_of_gid(new_gid(store)) == store


@pytest.mark.parametrize("make", [new_store_id, new_member_id, new_lease_id])
def test_other_ids_are_not_drawn_twice(make: Callable[[], object]) -> None:
    assert len({make() for _ in range(2_000)}) == 2_000


def test_ids_fit_where_they_are_used() -> None:
    check_name(new_store_id(), "store")
    member = new_member_id()
    assert 1 <= len(member) <= 256
    assert f".{os.getpid()}." in member
    assert all(0 <= new_lease_id() < 2**63 for _ in range(1_000))
