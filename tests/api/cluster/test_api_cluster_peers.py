"""What one broker tells another of who is asking is believed if it is whole, fresh, and about this very request."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from tallystick.api.cluster.peers import FRESH_MS, PeerSeal, Vouched
from tallystick.api.serving.http1 import MAX_HEAD_BYTES
from tallystick.core.access import CallerLimits, Grant, Identity
from tallystick.core.clock import ManualClock
from tallystick.core.errors import Unauthenticated

KEY = b"k" * 32
PATH = b"/stores/abc/v1/topics/orders?x=1"
SOMEBODY = Vouched(
    Identity("shop", "token", (Grant(("producer",), topics=("orders.*",)),), CallerLimits(3, 4), 1_800_000_000_000),
    "10.1.2.3",
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def seal(clock: ManualClock) -> PeerSeal:
    return PeerSeal(lambda: KEY, clock.now_ms)


def test_whoever_was_sealed_comes_out_as_they_were(seal: PeerSeal) -> None:
    assert seal.open(seal.seal("PUT", PATH, SOMEBODY), "PUT", PATH) == SOMEBODY


def test_a_seal_says_what_it_is_for(seal: PeerSeal) -> None:
    at_the_door = Vouched(SOMEBODY.identity, SOMEBODY.source, "door")
    assert SOMEBODY.purpose == "route"
    assert seal.open(seal.seal("POST", PATH, at_the_door), "POST", PATH).purpose == "door"


def test_no_two_seals_are_alike(seal: PeerSeal) -> None:
    assert seal.seal("GET", PATH, SOMEBODY) != seal.seal("GET", PATH, SOMEBODY)


def test_somebody_with_very_many_grants_has_room_in_a_head(seal: PeerSeal) -> None:
    names = tuple(f"department-{number}.of-the-company.events-of-kind-{number % 7}.*" for number in range(64))
    many = Vouched(Identity("many", "jwt", (Grant(("producer",), names, names, names),) * 8), "10.1.2.3")
    told = seal.seal("GET", PATH, many)
    assert len(told) < MAX_HEAD_BYTES // 4
    assert seal.open(told, "GET", PATH) == many


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", PATH),
        ("GET", b"/stores/abc/v1/topics/orders"),
        ("GET", b"/stores/abc/v1/topics/orders?x=2"),
        ("GET", b"/stores/abd/v1/topics/orders?x=1"),
        ("GE", b"T" + PATH),
    ],
)
def test_a_seal_is_for_one_request(seal: PeerSeal, method: str, path: bytes) -> None:
    with pytest.raises(Unauthenticated, match="for another request"):
        seal.open(seal.seal("GET", PATH, SOMEBODY), method, path)


@pytest.mark.parametrize("passed", [FRESH_MS + 1, -FRESH_MS - 1])
def test_a_seal_grows_old(seal: PeerSeal, clock: ManualClock, passed: int) -> None:
    told = seal.seal("GET", PATH, SOMEBODY)
    clock.step(passed)
    with pytest.raises(Unauthenticated, match="older than 30 seconds"):
        seal.open(told, "GET", PATH)


@pytest.mark.parametrize("passed", [FRESH_MS, -FRESH_MS])
def test_a_seal_holds_for_a_while_though_clocks_differ_a_little(
    seal: PeerSeal, clock: ManualClock, passed: int
) -> None:
    told = seal.seal("GET", PATH, SOMEBODY)
    clock.step(passed)
    assert seal.open(told, "GET", PATH) == SOMEBODY


def test_the_seal_of_another_cluster_is_not_believed(seal: PeerSeal, clock: ManualClock) -> None:
    other = PeerSeal(lambda: b"o" * 32, clock.now_ms)
    with pytest.raises(Unauthenticated):
        seal.open(other.seal("GET", PATH, SOMEBODY), "GET", PATH)


def test_a_single_altered_byte_breaks_the_seal(seal: PeerSeal) -> None:
    version, text, mac = seal.seal("GET", PATH, SOMEBODY).split(b".")
    sealed = base64.urlsafe_b64decode(text)
    for at in range(len(sealed)):
        altered = sealed[:at] + bytes((sealed[at] ^ 1,)) + sealed[at + 1 :]
        with pytest.raises(Unauthenticated):
            seal.open(b".".join((version, base64.urlsafe_b64encode(altered), mac)), "GET", PATH)
    for at in range(len(mac)):
        altered = mac[:at] + bytes((mac[at] ^ 1,)) + mac[at + 1 :]
        with pytest.raises(Unauthenticated):
            seal.open(b".".join((version, text, altered)), "GET", PATH)


@pytest.mark.parametrize(
    "said",
    [
        lambda whole: b"",
        lambda whole: b".",
        lambda whole: b"..",
        lambda whole: b"v1..",
        lambda whole: b"v2" + whole[2:],
        lambda whole: whole[3:],
        lambda whole: whole.rpartition(b".")[0],
        lambda whole: whole.rpartition(b".")[0] + b".",
        lambda whole: whole[:-1],
        lambda whole: whole + b"0",
        lambda whole: whole.upper(),
        lambda whole: b"v1.=.x",
        lambda whole: b"\xff" * 50,
    ],
)
def test_what_has_no_form_is_refused(seal: PeerSeal, said: Callable[[bytes], bytes]) -> None:
    with pytest.raises(Unauthenticated):
        seal.open(said(seal.seal("GET", PATH, SOMEBODY)), "GET", PATH)


def test_a_key_that_became_another_counts_from_then_on(clock: ManualClock) -> None:
    keys = [b"1" * 32]
    changing = PeerSeal(lambda: keys[-1], clock.now_ms)
    before = changing.seal("GET", PATH, SOMEBODY)
    keys.append(b"2" * 32)
    with pytest.raises(Unauthenticated):
        changing.open(before, "GET", PATH)
    assert changing.open(changing.seal("GET", PATH, SOMEBODY), "GET", PATH) == SOMEBODY


def test_nothing_is_sealed_without_a_key(clock: ManualClock) -> None:
    with pytest.raises(RuntimeError, match="not known yet"):
        PeerSeal(lambda: b"", clock.now_ms).seal("GET", PATH, SOMEBODY)


def test_neither_the_key_nor_what_was_said_is_told_by_a_refusal(seal: PeerSeal) -> None:
    told = seal.seal("GET", PATH, SOMEBODY)
    with pytest.raises(Unauthenticated) as refused:
        seal.open(told, "GET", b"/other")
    assert told.decode() not in str(refused.value)
    assert KEY.decode() not in str(refused.value)
