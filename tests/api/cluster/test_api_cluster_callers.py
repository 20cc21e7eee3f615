"""Who may what is the same at every broker of a cluster, whichever of them owns the store."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pytest
from access_clusters import TOKENS, Guarded, Tokened, guarded_cluster, shown
from exchanges import all_of_them

from access_tokens import ROLES
from access_tokens import TOKENS as KNOWN
from dtm_grpc import GrpcClient, Refused, request_of
from eventually import eventually
from raw_client import Answer
from servers import Server
from shared_stores import MARKS, new_place, url_of
from tallystick.api.access.table import DTM_HTTP, NATIVE, Needs
from tallystick.core.access import permissions_of
from tallystick.core.wire import ARROW, JSON, CallerView

pytestmark = pytest.mark.postgresql
HTTP = {**NATIVE, **DTM_HTTP}
NAMES = {"topic": "shop.orders", "queue:int": "0", "version:int": "0", "table": "transactions"}
DENIED = (401, 403)


@pytest.fixture(scope="module")
def guarded(postgres: Server) -> Iterator[Guarded]:
    """One store, two brokers."""
    url = url_of(postgres, postgres.new_database())
    # What is done by everybody is left to its time, so that nothing waits long for a call that nobody answers.
    with guarded_cluster(url, grpc=True, call_timeout="1s") as made:
        yield made


def path_of(route: str) -> tuple[str, str]:
    """A request to a route: its method and its path, with a name for each thing that is in it."""
    method, _, path = route.partition(" ")
    filled = re.sub(r"\{([^}]*)\}", lambda found: NAMES.get(found[1], "shop"), path)
    return method, f"{filled}shop.news" if filled.endswith("/") else filled


def powerless(needs: Needs) -> str:
    """Somebody who is known, and has no business there."""
    roles = [role for role in ROLES if not permissions_of(role) & set(needs.permissions)]
    return roles[0] if needs.whom == "some" else ""


def statuses(guarded: Guarded, who: str, route: str) -> set[int]:
    """At the owner and elsewhere, with and without the store's name."""
    method, path = path_of(route)
    return {
        guarded.ask(who, method, prefix + path, by=broker).status
        for broker in (guarded.owner, guarded.other)
        for prefix in ("", f"/stores/{guarded.store}")
    }


@pytest.mark.parametrize("route", sorted(HTTP))
def test_every_route_is_for_the_same_people_at_every_broker(guarded: Guarded, route: str) -> None:
    needs = HTTP[route]
    for who in ("", powerless(needs)):
        found = statuses(guarded, who, route)
        if needs.whom == "open":
            assert not found & {*DENIED}
        else:
            assert found == {403 if who else 401}
    assert not statuses(guarded, "admin", route) & {*DENIED}


@pytest.mark.parametrize("said", ["Bearer tally_aaaaaaaaaaaa_" + "a" * 43, "Bearer x", "Basic YTpi", "Bearer"])
def test_an_unknown_token_is_unknown_everywhere(guarded: Guarded, said: str) -> None:
    for broker in (guarded.owner, guarded.other):
        for prefix in ("", f"/stores/{guarded.store}"):
            answer = guarded.ask("", "GET", f"{prefix}/v1/topics", by=broker, headers={"Authorization": said})
            assert (answer.status, answer.problem().code) == (401, "unauthenticated")


@pytest.fixture
def empty(postgres: Server) -> Iterator[Guarded]:
    with guarded_cluster(url_of(postgres, postgres.new_database())) as made:
        yield made


@pytest.mark.parametrize("named", [True, False], ids=["store named", "store not named"])
def test_an_admin_can_use_every_route_through_a_broker_that_owns_nothing(empty: Guarded, named: bool) -> None:
    prefix = f"/stores/{empty.store}" if named else ""
    with Tokened(empty.other.url, shown("admin"), prefix) as client:
        assert all_of_them(client)


@pytest.mark.full
@pytest.mark.parametrize("engine", [pytest.param(name, marks=MARKS[name]) for name in ("mysql", "redis")])
def test_an_admin_can_use_every_route_whatever_the_brokers_share(engine: str, request: pytest.FixtureRequest) -> None:
    with (
        guarded_cluster(new_place(engine, request)) as guarded,
        Tokened(guarded.other.url, shown("admin")) as client,
    ):
        assert all_of_them(client)
        assert guarded.ask("", "GET", "/v1/topics").status == 401
        assert guarded.ask("consumer", "GET", "/v1/transactions").status == 403


# --- what is in a name -----------------------------------------------------------------------------------------------


def sent(guarded: Guarded, who: str, topic: str, prefix: str = "") -> Answer:
    body = json.dumps({"messages": [{"topic": topic, "value": 1}]}).encode()
    return guarded.ask(who, "POST", f"{prefix}/v1/messages", body, headers={"Content-Type": JSON})


@pytest.mark.parametrize("named", [True, False], ids=["store named", "store not named"])
def test_a_producer_sends_to_its_own_topics_alone_through_any_broker(guarded: Guarded, named: bool) -> None:
    prefix = f"/stores/{guarded.store}" if named else ""
    assert sent(guarded, "shop", "shop.orders", prefix).status == 201
    refused = sent(guarded, "shop", "bank.orders", prefix)
    assert (refused.status, refused.problem().code) == (403, "forbidden")
    assert "shop needs the permission `produce` on topic 'bank.orders'" in refused.problem().detail


def test_a_transaction_is_resolved_by_its_own_group_alone_through_any_broker(guarded: Guarded) -> None:
    def post(who: str, path: str, **content: object) -> int:
        body = json.dumps(content).encode()
        return guarded.ask(who, "POST", path, body, headers={"Content-Type": JSON}).status

    check = {"after_ms": 3_600_000}
    assert post("producer", "/v1/transactions", gid="theirs", group="bank", check=check) == 201
    assert post("shop", "/v1/transactions", gid="ours", group="bank", check=check) == 403
    assert post("shop", "/v1/transactions/theirs/commit") in (403, 404)
    assert guarded.ask("shop", "GET", "/v1/transactions/theirs").status == 404
    assert guarded.ask("producer", "GET", "/v1/transactions/theirs").json()["state"] == "prepared"
    assert post("producer", "/v1/transactions/theirs/commit") == 200


def test_whoever_is_asked_tells_the_same_of_who_asks(guarded: Guarded) -> None:
    views = [
        msgspec.json.decode(guarded.ask("shop", "GET", f"{prefix}/v1/whoami", by=broker).body, type=CallerView)
        for broker in (guarded.owner, guarded.other)
        for prefix in ("", f"/stores/{guarded.store}")
    ]
    assert views == [views[0]] * 4
    assert (views[0].name, views[0].kind, views[0].source) == ("shop", "static", "127.0.0.1")


# --- streams, long polls, gRPC ---------------------------------------------------------------------------------------


def arrow_of(topic: str) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"topic": [topic], "value": pa.array([b"x"], pa.binary())})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_columns_come_and_go_for_those_who_may(guarded: Guarded) -> None:
    def put(who: str, topic: str) -> int:
        headers = {"Content-Type": ARROW}
        return guarded.ask(who, "POST", f"/v1/parts/{topic}", arrow_of(topic), headers=headers).status

    assert (put("", "shop.a"), put("reader", "shop.a"), put("shop", "bank.a"), put("shop", "shop.a")) == (
        401,
        403,
        403,
        201,
    )
    assert sent(guarded, "admin", "bank.columns").status == 201
    path = "/v1/topics/bank.columns/queues/0/messages"
    found = {who: guarded.ask(who, "GET", path, headers={"Accept": ARROW}) for who in ("", "shop", "consumer")}
    assert {who: answer.status for who, answer in found.items()} == {"": 401, "shop": 403, "consumer": 200}
    assert pa.ipc.open_stream(io.BytesIO(found["consumer"].body)).read_all().num_rows <= 1


def test_a_long_poll_waits_for_those_who_may(guarded: Guarded) -> None:
    body = json.dumps({"topic": "shop.polled", "wait_ms": 60_000, "invisible_ms": 60_000}).encode()
    headers = {"Content-Type": JSON}
    assert sent(guarded, "shop", "shop.polled").status == 201
    statuses = {
        who: guarded.ask(who, "POST", "/v1/groups/g/receive", body, headers=headers).status
        for who in ("", "shop", "consumer")
    }
    assert statuses == {"": 401, "shop": 403, "consumer": 200}
    assert guarded.ask("shop", "POST", "/v1/checks/poll", b'{"group": "bank", "member": "m"}').status == 403


def test_grpc_asks_who_it_is_at_a_broker_that_owns_nothing(guarded: Guarded) -> None:
    def tried(who: str, method: str, body: bytes) -> str:
        metadata = [("authorization", value) for value in shown(who).values()]
        with GrpcClient(guarded.other) as client:
            try:
                client.call(method, body, metadata=metadata)
            except Refused as refused:
                return refused.code
        return "OK"

    prepare = request_of("grpc-1", [("http://127.0.0.1:1/x", b"")], "http://127.0.0.1:1/q").SerializeToString()
    codes = {who: (tried(who, "NewGid", b""), tried(who, "Prepare", prepare)) for who in ("", "reader", "admin")}
    assert codes == {
        "": ("UNAUTHENTICATED", "UNAUTHENTICATED"),
        "reader": ("OK", "PERMISSION_DENIED"),
        "admin": ("OK", "OK"),
    }


def test_how_much_one_may_have_under_way_is_counted_where_it_is_asked_for(guarded: Guarded) -> None:
    inside, headers = f"/stores/{guarded.store}", {"Content-Type": JSON}
    body = json.dumps({"topic": "shop.single", "wait_ms": 60_000, "invisible_ms": 60_000}).encode()

    def received() -> list[object]:
        while True:  # it may meet the question whether it is there
            answer = guarded.ask(
                "single", "POST", f"{inside}/v1/groups/single/receive", body, headers=headers, timeout=120
            )
            if answer.status != 429 and answer.json()["deliveries"]:
                return list(answer.json()["deliveries"])

    def busy() -> bool:
        return guarded.ask("single", "GET", f"{inside}/v1/groups").status == 429

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(received)
        eventually(busy, "a caller who has a request under way")
        assert guarded.ask("single", "GET", "/v1/groups", by=guarded.owner).status == 200, "each broker counts its own"
        assert sent(guarded, "shop", "shop.single").status == 201
        assert len(waiting.result(120)) == 1
    eventually(lambda: not busy(), "a caller who has nothing under way")


# --- owners that come and go -----------------------------------------------------------------------------------------


def test_a_broker_without_a_store_knows_everybody_again_when_another_has_taken_over(postgres: Server) -> None:
    """One store, three brokers. The owner dies: whoever takes the store over says who is asking."""
    url = url_of(postgres, postgres.new_database())
    with guarded_cluster(url, brokers=3, lease="2s") as guarded:
        assert sent(guarded, "shop", "shop.orders").status == 201
        guarded.owner.kill()
        survivors = [broker for broker in guarded.cluster.brokers if broker.running]

        def known_everywhere() -> bool:
            answers = [guarded.ask("shop", "GET", "/v1/topics/shop.orders", by=broker) for broker in survivors]
            return all(answer.status == 200 for answer in answers)

        eventually(known_everywhere, "two brokers that know who is asking")
        for broker in survivors:
            assert guarded.ask("", "GET", "/v1/topics/shop.orders", by=broker).status == 401
            assert guarded.ask("shop", "GET", "/v1/topics/bank.orders", by=broker).status == 403


def test_an_owner_is_told_who_asks_and_not_what_they_have_shown(postgres: Server) -> None:
    """Two stores, two brokers, one of which does not know the token: who shows it there is nobody."""
    url = url_of(postgres, postgres.new_database())
    with guarded_cluster(url, stores=2, lease="2s") as guarded:
        first, second = guarded.cluster.brokers
        second.write_tables({"static_tokens": [one.table for one in KNOWN]})
        second.restart()
        guarded.cluster.wait_until_spread()
        (store,) = (store for store, url in guarded.cluster.owners().items() if url == second.url)
        path = f"/stores/{store}/v1/topics/shop.orders"
        body = json.dumps({"messages": [{"topic": "shop.orders", "value": 1}]}).encode()
        answer = guarded.ask("shop", "POST", f"/stores/{store}/v1/messages", body, by=first)
        assert answer.status == 201, answer
        assert guarded.ask("shop", "GET", path, by=first).status == 200
        assert guarded.ask("shop", "GET", path, by=second).status == 401
        for broker in (first, second):
            assert not [one for one in ("shop", "admin", "reader") if TOKENS[one].text in broker.log_text()]
