"""`tallystick cluster`, what `doctor` says of one, and how commands show it and find it."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator

import msgspec
import pytest
from command_line import Done, one_line, tallystick

from broker_clusters import BrokerCluster, running_cluster
from brokers import running_broker
from eventually import eventually, eventually_equal
from raw_client import RawClient
from servers import Server, postgres_server, redis_server
from shared_stores import url_of
from tallystick.core.errors import StorageFull
from tallystick.core.ids import new_member_id
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.store.shared.opening import registry_at
from tallystick.store.shared.registry import Member

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def place(postgres: Server) -> str:
    return url_of(postgres, postgres.new_database())


@pytest.fixture
def cluster(place: str) -> Iterator[BrokerCluster]:
    with running_cluster(place, brokers=2, stores=3) as made:
        yield made


def doctor(url: str) -> Done:
    return tallystick("doctor", "--no-environment", "--json", url=url)


def findings(done: Done, subject: str) -> list[tuple[str, str]]:
    """What is said of something, each with its advice."""
    found = [one for one in done.json()["findings"] if one["subject"] == subject]
    return [(one["status"], f"{one['text']} -> {one['advice']}") for one in found]


def ids(cluster: BrokerCluster, url: str) -> list[str]:
    """Of the living brokers with this address."""
    return [one["id"] for one in cluster.view()["brokers"] if one["url"] == url and one["alive"]]


@pytest.mark.postgresql
def test_brokers_and_stores_are_shown_also_after_a_death(cluster: BrokerCluster) -> None:
    first, second = cluster.brokers
    shown = tallystick("cluster", url=first.url)
    assert shown.code == 0
    assert first.url in shown.out
    assert second.url in shown.out
    assert "nobody" not in shown.out
    found = doctor(first.url)
    for subject, status in (("cluster", "ok"), ("addresses", "ok"), ("durability", "problem")):
        assert {one[0] for one in findings(found, subject)} == {status}
    taken = list(cluster.owners().values()).count(second.url)
    second.kill()
    eventually(lambda: len([url for url in cluster.owners().values() if url == first.url]) == 3, "a takeover")
    view = json.loads(tallystick("cluster", "--json", url=first.url).out)
    assert {one["url"].partition("/stores")[0] for one in view["stores"]} == {first.url}
    assert [one["alive"] for one in view["brokers"] if one["url"] == second.url] == [False]
    lease_ms = 3_000
    (silent_ms,) = (one["silent_ms"] for one in view["brokers"] if one["url"] == second.url)
    assert silent_ms >= lease_ms
    assert sum(one["vacant_ms"] is not None and one["vacant_ms"] >= lease_ms for one in view["stores"]) == taken
    assert all(one["owned_ms"] >= 0 for one in view["stores"])
    table = tallystick("cluster", url=first.url).out
    assert "last beat" in table
    assert sum(f"{one['vacant_ms'] / 1000:.1f}s" in table for one in view["stores"] if one["vacant_ms"]) >= taken
    with urllib.request.urlopen(f"{first.url}/metrics", timeout=10) as answer:
        told = answer.read().decode()
    for one in view["stores"]:
        if one["vacant_ms"] is not None:
            assert f'tallystick_cluster_vacant_seconds{{store="{one["id"]}"}} {one["vacant_ms"] / 1000}' in told


def test_a_broker_of_its_own_says_so() -> None:
    with running_broker(store="memory") as broker:
        assert "a broker of its own" in tallystick("cluster", url=broker.url).err


@pytest.mark.postgresql
def test_queues_of_a_topic_are_those_of_each_store(cluster: BrokerCluster) -> None:
    url = cluster.brokers[0].url
    made = tallystick("topics", "create", "orders", "--queues", "4", url=url)
    for shown in (made, tallystick("topics", "show", "orders", url=url), tallystick("topics", url=url)):
        assert "12 (4 \u00d7 3 stores)" in shown.out
    assert tallystick("topics", "show", "orders", "--json", url=url).json()["queues"] == 12
    one_store = f"{url}/stores/{cluster.view()['stores'][0]['id']}"
    assert "stores" not in tallystick("topics", url=one_store).out


@pytest.mark.postgresql
def test_a_topic_that_some_stores_do_not_have_is_shown_so_and_made_there(cluster: BrokerCluster) -> None:
    """As after a copy of a broker's own store into one of them."""
    url, store = cluster.brokers[0].url, cluster.view()["stores"][1]["id"]
    tallystick("topics", "create", "bills", "--queues", "2", url=f"{url}/stores/{store}")
    for shown in (tallystick("topics", "show", "bills", url=url), tallystick("topics", url=url)):
        assert "2 (1 of 3 stores)" in shown.out
    missing = tallystick("topics", "show", "bills", "--json", url=url).json()["missing_on"]
    assert (len(missing), store in missing) == (2, False)
    told = [one for one in tallystick("doctor", "--json", url=url).json()["findings"] if one["subject"] == "topics"]
    assert [one["status"] for one in told] == ["note"]
    assert f"bills (not on {', '.join(missing)})" in told[0]["text"]
    made = tallystick("topics", "create", "bills", "--queues", "2", url=url)
    assert "made on 2 further stores" in made.err
    assert "6 (2 \u00d7 3 stores)" in made.out
    assert "missing_on" not in tallystick("topics", "show", "bills", "--json", url=url).json()


@pytest.mark.postgresql
def test_of_several_addresses_the_first_that_answers_is_asked(cluster: BrokerCluster) -> None:
    first, second = (broker.url for broker in cluster.brokers)
    for given, answered in ((f"{NOWHERE},{second},{first}", second), (f"{first}, {NOWHERE}/", first)):
        view = tallystick("cluster", "--json", TALLYSTICK_URL=given).json()
        assert ids(cluster, answered) == [view["broker"]]
    assert findings(doctor(f"{NOWHERE},{second}"), "broker")[0][1].startswith(f"answers at {second}")
    sent = tallystick("send", "orders", "a", url=f"{NOWHERE},{first}")
    assert sent.code == 0, sent.err
    read = tallystick("tail", "orders", "--no-follow", "--json", url=f"{NOWHERE},{first}")
    assert json.loads(read.out)["value"] == "a"


def test_addresses_where_nobody_answers_are_all_named() -> None:
    nobody = tallystick("topics", url=f"{NOWHERE},http://127.0.0.1:7")
    assert nobody.code == 4
    assert f"at any of {NOWHERE}, http://127.0.0.1:7" in one_line(nobody.err)


# --- what is wrong with a cluster ----------------------------------------------------------------------------------


@pytest.mark.postgresql
def test_a_former_life_is_not_shown(place: str) -> None:
    with running_cluster(place, brokers=2, stores=2, lease="1s") as cluster:
        first, second = cluster.brokers
        (before,) = ids(cluster, second.url)
        second.kill()
        second.start()
        cluster.wait_until_spread()
        eventually(lambda: before not in ids(cluster, second.url), "a former life that is taken for dead")
        shown = tallystick("cluster", url=first.url).out
        assert before not in shown
        assert shown.count(second.url) == 1
        assert [one[0] for one in findings(doctor(first.url), "cluster")] == ["ok"]


@pytest.mark.full
@pytest.mark.postgresql
def test_two_brokers_at_one_address_are_told_apart(place: str) -> None:
    with running_cluster(place, brokers=2, stores=2, lease="1s") as cluster:
        first, second = cluster.brokers
        (right,) = ids(cluster, second.url)
        with beating_at(second.url, place):
            (wrong,) = eventually(lambda: set(ids(cluster, second.url)) - {right}, "a broker at a wrong address")
            found = findings(doctor(first.url), "addresses")
        assert [status for status, _ in found] == ["problem"]
        assert f"broker {wrong} " in found[0][1]
        assert f"{second.url}: broker {right} is" in found[0][1]
        assert "--advertise" in found[0][1]


@contextlib.contextmanager
def beating_at(url: str, place: str) -> Iterator[None]:
    """A member that says it is at this address, as if it had started at the same moment as the one that is there."""
    over = threading.Event()
    twin = Member(new_member_id(), socket.gethostname()[:60], url, leaving=True)

    def beat() -> None:
        with contextlib.closing(registry_at(place)) as registry:
            for number in itertools.count(1):
                registry.look(msgspec.structs.replace(twin, beat=number))
                if over.wait(0.1):
                    return

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        yield
    finally:
        over.set()
        beating.join()


@pytest.mark.postgresql
def test_a_second_broker_at_an_address_does_not_start(place: str) -> None:
    with running_cluster(place, brokers=1, stores=1, lease="1s") as cluster:
        (broker,) = cluster.brokers
        done = tallystick(
            "serve", "--store", place, "--allow-weak-durability", "--port", "0", "--no-grpc", "--lease", "1s",
            "--advertise", broker.url,
        )  # fmt: skip
        assert done.code == 2
        assert f"already runs at this address (got {broker.url})" in done.err
        assert cluster.view()["broker"] in done.err
        eventually_equal(lambda: [one["id"] for one in cluster.view()["brokers"]], [cluster.view()["broker"]])


@pytest.mark.postgresql
def test_a_broker_that_was_killed_starts_again_at_its_address(place: str) -> None:
    with running_cluster(place, brokers=1, stores=1, lease="3s") as cluster:
        (broker,) = cluster.brokers
        before = cluster.view()["broker"]
        broker.kill()
        broker.start()
        assert cluster.view()["broker"] != before


@pytest.mark.postgresql
def test_an_address_that_nobody_reaches_is_told(place: str) -> None:
    with running_cluster(place, brokers=1, stores=1, lease="1s") as cluster, second_life_at(NOWHERE, place):
        (wrong,) = eventually(lambda: ids(cluster, NOWHERE), "a broker at a wrong address")
        done = doctor(cluster.brokers[0].url)
    found = findings(done, "addresses")
    assert (done.code, [status for status, _ in found]) == (1, ["problem"])
    assert f"broker {wrong} " in found[0][1]
    assert "cannot be reached from here at http://127.0.0.1:9" in found[0][1]
    assert "--advertise" in found[0][1]


@pytest.mark.full
@pytest.mark.postgresql
def test_loopback_addresses_of_several_machines_are_told(place: str) -> None:
    elsewhere = "import socket; socket.gethostname = lambda: 'elsewhere'"
    with running_cluster(place, brokers=1, stores=1, lease="1s") as cluster:
        here = cluster.brokers[0].url
        with running_broker(store=place, allow_weak_durability=True, lease="1s", prelude=elsewhere) as other:
            both = [*eventually(lambda: ids(cluster, other.url), "a broker elsewhere"), *ids(cluster, here)]
            found = findings(doctor(here), "addresses")
    assert [status for status, _ in found] == ["problem", "problem"]
    for broker in both:
        assert any(f"broker {broker} " in text and "no other machine" in text for _, text in found)
    assert all("--host" in text for _, text in found)


def second_life_at(url: str, place: str) -> contextlib.AbstractContextManager[object]:
    """A broker that says it is where it is not."""
    return running_broker(store=place, allow_weak_durability=True, lease="1s", advertise=url)


@pytest.mark.postgresql
def test_without_the_engine_the_map_says_how_old_it_is_and_the_doctor_goes_on() -> None:
    with (
        postgres_server() as server,
        running_cluster(url_of(server, server.new_database()), brokers=2, stores=2, lease="1s") as cluster,
    ):
        url = cluster.brokers[0].url
        assert not cluster.view()["engine_away"]
        server.kill()
        view = eventually(lambda: (told := cluster.view())["engine_away"] and told, "a broker that knows it")
        assert view["age_ms"] > 0
        shown = tallystick("cluster", url=url)
        assert shown.code == 1
        assert url in shown.out
        assert "the shared engine does not answer" in one_line(shown.err)
        assert tallystick("cluster", "--json", url=url).code == 1
        done = doctor(url)
        assert done.code == 1
        for subject in ("ready", "broker", "cluster", "parked", "consumers"):
            assert [status for status, _ in findings(done, subject)] == ["problem"], subject
        assert "does not answer this broker" in findings(done, "cluster")[0][1]
        assert [status for status, _ in findings(done, "addresses")] == ["ok"]
        server.start()
        eventually(lambda: tallystick("cluster", url=url).code == 0, "a map that is of now")


def test_stores_without_room_are_shown_whoever_owns_them() -> None:
    with redis_server() as server, running_cluster(server.url, brokers=2, stores=2) as cluster:
        url = cluster.brokers[0].url
        assert tallystick("cluster", url=url).code == 0
        with contextlib.closing(server.connect()) as client:
            client.config_set("maxmemory", "1")
        stores = [store["id"] for store in cluster.view()["stores"]]
        for store in stores:
            with RawClient(f"{url}/stores/{store}") as client, pytest.raises(StorageFull, match="maxmemory is used up"):
                client.do(Send([OutgoingMessage("orders", b"x")]))
        shown = tallystick("cluster", url=url)
        assert shown.code == 1
        found = findings(done := doctor(url), "stores")
        assert (done.code, [status for status, _ in found]) == (1, ["problem", "problem"])
        for store in stores:
            assert f"store {store} takes no new messages: " in shown.err
            assert any(f"store {store} takes no new messages: " in text for _, text in found)
