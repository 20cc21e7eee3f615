"""Any broker of a cluster takes any request: every route, asked of a broker that does not own the store."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from exchanges import all_of_them, routes_of
from test_api_truthful import Judge

from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess
from raw_client import Answer, RawClient
from servers import Server
from shared_stores import url_of
from tallystick.api.cluster.access import ClusterAccess
from tallystick.api.cluster.asking import METHODS, way
from tallystick.api.cluster.door import ClusterDoor
from tallystick.api.cluster.views import ClusterViews
from tallystick.api.http.table import ROUTES
from tallystick.broker.access_ways import AccessWays
from tallystick.broker.door import BrokerDoor

pytestmark = pytest.mark.postgresql


class Prefixed(RawClient):
    """Asks for everything under a path."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__(url)
        self._prefix = prefix

    def request(self, method: str, path: str, *rest: object, **options: object) -> Answer:
        return super().request(method, self._prefix + path, *rest, **options)  # type: ignore[arg-type]


@pytest.fixture
def cluster(postgres: Server) -> Iterator[BrokerCluster]:
    """One store, two brokers: one of them owns nothing."""
    with running_cluster(url_of(postgres, postgres.new_database()), brokers=2, stores=1, lease="20s") as made:
        yield made


def owner_and_other(cluster: BrokerCluster) -> tuple[str, BrokerProcess, BrokerProcess]:
    """The store, its owner, and the broker that owns nothing."""
    (store,) = cluster.owners()
    owner = cluster.owner_of(store)
    (other,) = (broker for broker in cluster.brokers if broker is not owner)
    return store, owner, other


@pytest.mark.parametrize("named", [True, False], ids=["store named", "store not named"])
def test_every_route_works_through_a_broker_that_does_not_own_the_store(cluster: BrokerCluster, named: bool) -> None:
    store, _, other = owner_and_other(cluster)
    with Prefixed(other.url, f"/stores/{store}" if named else "") as client:
        said = all_of_them(client)
        document = client.request("GET", "/openapi.json").json()
    assert set(routes_of(said)) == {(route.method, route.path) for route in ROUTES}
    judge = Judge(document, well_formed=True)
    for exchange in said:
        judge.judge(exchange)


def test_a_request_that_was_handed_on_is_not_handed_on_again(cluster: BrokerCluster) -> None:
    store, _, other = owner_and_other(cluster)
    with RawClient(other.url) as client:
        answer = client.request("GET", f"/stores/{store}/v1/info", None, {"Tallystick-Forwarded": "somebody"})
    assert (answer.status, answer.problem().code) == (503, "moved")


def test_what_is_no_store_and_no_way_is_told(cluster: BrokerCluster) -> None:
    store, owner, other = owner_and_other(cluster)
    for broker in (owner, other):
        with RawClient(broker.url) as client:
            assert client.request("GET", "/stores/00000000/v1/info").problem().code == "not_found"
            assert client.request("GET", "/stores/").problem().code == "not_found"
            assert client.request("GET", f"/stores/{store}").problem().code == "not_found"
            assert client.request("GET", f"/%73tores/{store}/v1/info").status == 200
            assert client.request("GET", f"/stores/%{ord(store[0]):x}{store[1:]}/v1/info").status == 200
            assert client.request("GET", f"/stores/{store}/v1/nothing").problem().code == "not_found"
            assert client.request("GET", "/v1/nothing").problem().code == "not_found"
            for way in ("close", "transaction"):
                assert client.request("POST", f"/stores/{store}/.door/{way}", b"junk").problem().code == "forbidden"
            assert client.request("GET", "/v1/transactions?after=nowhere").problem().field == "after"


def test_a_broker_that_asks_for_what_is_no_way_is_told(cluster: BrokerCluster) -> None:
    store, owner, _ = owner_and_other(cluster)
    broker = {"Tallystick-Forwarded": "another"}
    with RawClient(owner.url) as client:
        for way, code in (("close", "not_found"), ("transaction", "invalid_request")):
            answer = client.request("POST", f"/stores/{store}/.door/{way}", b"junk", broker)
            assert answer.problem().code == code


def test_the_door_of_a_cluster_has_every_way_of_a_brokers_own() -> None:
    """What it does not have itself would look for a store behind it, and there is none."""
    ways = {name for part in (BrokerDoor, AccessWays) for name in vars(part) if not name.startswith("_")}
    own = {name for part in (ClusterDoor, ClusterAccess, ClusterViews) for name in vars(part)}
    # Made of others; asked of a store's own door only; and about whom a door is for.
    assert ways - own == {"do", "families", "give_turn_back", "of", "take_turn", "whoami"}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_may_be_asked_of_another_broker_has_types_that_can_be_decoded(method: str) -> None:
    msgspec.msgpack.Decoder(way(method).takes)
    msgspec.msgpack.Decoder(way(method).gives)
