"""What strangers say in the brokers' own headers gains them nothing."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import msgspec
import pytest
from access_clusters import TOKENS, Guarded, guarded_cluster, shown

from brokers import BrokerProcess
from servers import Server
from shared_stores import url_of
from spoken_targets import status_of
from tallystick.api.cluster.peers import FRESH_MS, PeerSeal, Vouched
from tallystick.core.access import Evidence, Grant, Identity
from tallystick.core.wire import MSGPACK
from tallystick.store.shared.opening import registry_at

pytestmark = pytest.mark.postgresql
ADMIN = Identity("admin", "static", (Grant(("admin",)),))
BROKER = Identity("another", "broker", ())


def now_ms() -> int:
    return int(time.time() * 1000)


class Place(NamedTuple):
    guarded: Guarded
    key: bytes

    def seal(self, identity: Identity, method: str, path: str, **other: Any) -> dict[str, str]:
        """The header that a broker of this cluster would send, unless something is another."""
        key, at, purpose = other.get("key", self.key), other.get("at", now_ms), other.get("purpose", "route")
        made = PeerSeal(lambda: key, at).seal(method, path.encode(), Vouched(identity, "10.9.9.9", purpose))
        return {"Tallystick-Caller": made.decode()}

    @property
    def inside(self) -> str:
        return f"/stores/{self.guarded.store}"


@pytest.fixture(scope="module")
def place(postgres: Server) -> Iterator[Place]:
    url = url_of(postgres, postgres.new_database())
    with guarded_cluster(url) as guarded, closing(registry_at(url)) as registry:
        yield Place(guarded, registry.peer_key())


def status(place: Place, method: str, path: str, headers: dict[str, str], who: str = "", **rest: Any) -> int:
    return place.guarded.ask(who, method, path, by=rest.pop("by", place.guarded.owner), headers=headers, **rest).status


def test_who_has_the_key_is_a_broker(place: Place) -> None:
    """So that the refusals below are for what they say, and not for a seal that is wrong anyway."""
    path = f"{place.inside}/v1/whoami"
    answer = place.guarded.ask("", "GET", path, by=place.guarded.owner, headers=place.seal(ADMIN, "GET", path))
    assert answer.status == 200
    assert (answer.json()["name"], answer.json()["source"]) == ("admin", "10.9.9.9")


LIES: dict[str, Callable[[Place, str], dict[str, str]]] = {
    "made up": lambda place, path: {"Tallystick-Caller": "admin"},
    "empty": lambda place, path: {"Tallystick-Caller": ""},
    "another key": lambda place, path: place.seal(ADMIN, "GET", path, key=b"x" * 32),
    "another path": lambda place, path: place.seal(ADMIN, "GET", f"{place.inside}/v1/info"),
    "another query": lambda place, path: place.seal(ADMIN, "GET", f"{path}?limit=1"),
    "another store": lambda place, path: place.seal(ADMIN, "GET", path.replace(place.guarded.store, "0" * 8)),
    "another method": lambda place, path: place.seal(ADMIN, "POST", path),
    "too old": lambda place, path: place.seal(ADMIN, "GET", path, at=lambda: now_ms() - FRESH_MS - 5_000),
    "from tomorrow": lambda place, path: place.seal(ADMIN, "GET", path, at=lambda: now_ms() + 86_400_000),
    "handed on by somebody": lambda place, path: {"Tallystick-Forwarded": "another"},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("who", ["", "admin"])
def test_a_lie_gains_nothing_and_a_token_does_not_make_up_for_it(place: Place, lie: str, who: str) -> None:
    for path in (f"{place.inside}/v1/topics", f"{place.inside}/api/dtmsvr/all", f"{place.inside}/metrics"):
        for broker in (place.guarded.owner, place.guarded.other):
            assert status(place, "GET", path, LIES[lie](place, path), who, by=broker) == 401, (path, broker.url)


@pytest.mark.parametrize("lie", [lie for lie in LIES if lie != "another store"])
def test_a_lie_gains_nothing_without_a_store_either(place: Place, lie: str) -> None:
    headers = LIES[lie](place, "/v1/topics")
    for broker in (place.guarded.owner, place.guarded.other):
        assert status(place, "GET", "/v1/topics", headers, by=broker) == 401


def test_who_is_vouched_for_may_what_they_may_and_no_more(place: Place) -> None:
    reader = Identity("r", "token", (Grant(("reader",)),))
    path = f"{place.inside}/v1/topics/shop.x"
    assert status(place, "GET", path, place.seal(reader, "GET", path)) == 404
    assert status(place, "DELETE", path, place.seal(reader, "DELETE", path)) == 403
    assert status(place, "DELETE", path, place.seal(ADMIN, "DELETE", path)) == 404


def test_a_brokers_own_name_opens_no_route(place: Place) -> None:
    path = f"{place.inside}/v1/topics"
    assert status(place, "GET", path, place.seal(BROKER, "GET", path)) == 403


# --- the ways of a door ----------------------------------------------------------------------------------------------


def asked(
    place: Place, way: str, args: list[Any], headers: dict[str, str], who: str = "", by: BrokerProcess | None = None
) -> tuple[int, Any]:
    answer = place.guarded.ask(
        who,
        "POST",
        f"{place.inside}/.door/{way}",
        msgspec.msgpack.encode(args),
        by=by or place.guarded.owner,
        headers={"Content-Type": MSGPACK, **headers},
    )
    return answer.status, msgspec.msgpack.decode(answer.body) if answer.status == 200 else None


def at_the_door(place: Place, identity: Identity, way: str) -> dict[str, str]:
    """What a broker says that asks for one of the ways."""
    return place.seal(identity, "POST", f"{place.inside}/.door/{way}", purpose="door")


def leaks(place: Place) -> list[str]:
    """Ways of a store's door that somebody went through who must not."""
    reader = Identity("r", "token", (Grant(("reader",), topics=("shop.*",)),))
    evidence = [Evidence(authorization=f"Bearer {TOKENS['admin'].text}")]
    refused = {"": 401, "admin": 403}
    tried: list[tuple[str, list[Any], Identity | None, str]] = [
        ("delete_topic", ["bank.secret"], None, ""),
        ("delete_topic", ["bank.secret"], None, "admin"),
        ("delete_topic", ["bank.secret"], reader, ""),
        ("delete_topic", ["bank.secret"], BROKER, ""),
        ("topic", ["bank.secret"], reader, ""),
        ("put_topic", ["bank.made", {}], reader, ""),
        ("transactions", [None, None, None, 10], BROKER, ""),
        ("caller_of", evidence, None, "admin"),
        ("caller_of", evidence, reader, ""),
        ("caller_of", evidence, ADMIN, ""),
    ]
    found = []
    for way, args, identity, who in tried:
        headers = {} if identity is None else at_the_door(place, identity, way)
        told, _ = asked(place, way, args, headers, who)
        if told != (refused[who] if identity is None else 403):
            found.append(f"{way} for {who or (identity and identity.name)}: {told}")
    return found


def test_the_ways_of_a_door_are_for_whom_a_broker_vouches_for_as_far_as_their_grants_go(place: Place) -> None:
    assert leaks(place) == []
    assert asked(place, "topic", ["shop.none"], at_the_door(place, ADMIN, "topic"))[0] == 404
    made = asked(place, "put_topic", ["shop.made", {"queues": 1}], at_the_door(place, ADMIN, "put_topic"))
    assert made[0] == 200


def test_only_a_broker_is_told_who_somebody_is(place: Place) -> None:
    evidence = [Evidence(authorization=f"Bearer {TOKENS['shop'].text}")]
    seal = at_the_door(place, BROKER, "caller_of")
    found, identity = asked(place, "caller_of", evidence, seal)
    assert (found, identity["name"]) == (200, "shop")
    assert asked(place, "caller_of", [Evidence(authorization="Bearer no")], seal)[0] == 401


# As somebody who is known tries it, from outside: what is read has no limit there, and no name is looked at.
WAYS: dict[str, list[Any]] = {
    "info": [],
    "fetch": ["shop.orders", 0, 0, 1_000_000, 100_000_000, 0],
    "put_topic": ["bad/ name\n\0", {"queues": 1}],
    "put_topic of a good name": ["shop.well-named", {"queues": 1}],
    "close": [],
}


@pytest.mark.parametrize("who", ["admin", "reader"])
@pytest.mark.parametrize("way", WAYS)
def test_no_caller_gets_to_a_way_whichever_broker_they_ask(place: Place, way: str, who: str) -> None:
    for broker in (place.guarded.owner, place.guarded.other):
        assert asked(place, way.partition(" ")[0], WAYS[way], {}, who, by=broker)[0] == 403
        assert asked(place, way.partition(" ")[0], WAYS[way], {}, by=broker)[0] == 401
    topics = place.guarded.ask("admin", "GET", "/v1/topics").json()["topics"]
    assert not {"bad/ name\n\0", "shop.well-named"} & {one["name"] for one in topics}


@pytest.mark.parametrize("way", WAYS)
def test_what_a_broker_hands_on_is_no_way_of_its_own(place: Place, way: str) -> None:
    """The second lock: were it handed on, the owner would see what the seal is for."""
    name = way.partition(" ")[0]
    handed_on = place.seal(ADMIN, "POST", f"{place.inside}/.door/{name}")
    assert asked(place, name, WAYS[way], handed_on)[0] == 403


def spellings(place: Place) -> list[str]:
    store = place.guarded.store
    return [
        f"/stores/{store}/.door/info",
        f"/stores/{store}/%2edoor/info",
        f"/stores/{store}/.door%2finfo",
        f"/stores/{store}%2f.door/info",
        f"/stores%2f{store}/.door/info",
        f"/stores%2F{store}%2Fx/y/.door/info",
        f"/stores%2F{store}%2Fx%2Fy/.door/info",
        f"/x/y/z/../../../stores/{store}/.door/info",
        f"/stores/{store}//.door/info",
        f"/stores/{store}/./.door/info",
        f"/stores/{store}/x/../.door/info",
        f"//stores/{store}/.door/info",
        f"http://elsewhere.example/stores/{store}/.door/info",
        f"/stores/{store}/.door/info/",
        f"/stores/{store}/.door/info;x",
        f"/stores/{store}/.DOOR/info",
    ]


def test_no_spelling_of_its_path_leads_to_a_way(place: Place) -> None:
    """Whatever a path is looked at as is what is handed on."""
    for broker in (place.guarded.owner, place.guarded.other):
        for target in spellings(place):
            found = [status_of(broker.port, target, shown(who), "POST", b"\x90") for who in ("admin", "")]
            assert found in ([403, 401], [404, 401], [400, 400]), (target, found)


_BLIND = """
import tallystick.api.cluster.asking as asking
import tallystick.api.cluster.api as api
asking.DoorApi._door_for = lambda self, scope: self.door
api.DOOR = "/none/"
"""


def test_a_door_that_does_not_look_at_the_seal_is_found_out(postgres: Server) -> None:
    url = url_of(postgres, postgres.new_database())
    with guarded_cluster(url, prelude=_BLIND) as guarded, closing(registry_at(url)) as registry:
        found = leaks(Place(guarded, registry.peer_key()))
    assert any(leak.startswith("delete_topic") for leak in found)
    assert any(leak.startswith("transactions") for leak in found)


# --- addresses -------------------------------------------------------------------------------------------------------


def test_an_address_grant_is_for_the_address_that_asks_and_not_for_the_brokers_own(postgres: Server) -> None:
    """Brokers reach each other from 127.0.0.1, which may read here. Who asks from 127.0.0.2 may not, through any."""
    grants = [{"name": "near", "roles": ["reader"], "addresses": ["127.0.0.1/32"]}]
    with guarded_cluster(url_of(postgres, postgres.new_database()), address_grants=grants) as guarded:
        for broker in (guarded.owner, guarded.other):
            for prefix in ("", f"/stores/{guarded.store}"):
                assert guarded.ask("", "GET", f"{prefix}/v1/topics", by=broker).status == 200
                assert guarded.ask("", "DELETE", f"{prefix}/v1/topics/shop.x", by=broker).status == 403
                assert _from("127.0.0.2", broker.port, f"{prefix}/v1/topics") == 401


def _from(address: str, port: int, path: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(address, 0))) as connection:
        connection.request("GET", path)
        return connection.getresponse().status
