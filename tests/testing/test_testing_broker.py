"""The broker of the tests: what it shows, what it asserts, and what can be done to it."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import http.client
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import ANY
from urllib.parse import urlsplit

import pytest
from testing_shop import Shop

import tallystick
from eventually import eventually_equal
from forking_warnings import FORKING_WARNINGS
from tallystick.errors import BrokerUnavailable, InvalidRequest, TallystickError
from tallystick.testing import MemoryBroker

SHOP = "http://inventory.internal:8080/reserve"


@dataclasses.dataclass
class Order:
    item: str


class TestMessages:
    def test_they_are_seen_as_soon_as_the_block_has_ended(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop
    ) -> None:
        for number in range(20):
            with tallystick_client.transaction(shop.conn) as tx:
                tx.send("orders", {"number": number}, key="k", headers={"a": "b", "c": "d"}, tag="new")
            assert len(tallystick_broker.messages("orders")) == number + 1
        assert [message.json()["number"] for message in tallystick_broker.messages("orders")] == list(range(20))
        found = tallystick_broker.assert_sent("orders", {"number": 7}, key="k", headers={"a": "b"}, tag="new", times=1)
        assert found.json() == {"number": 7}

    async def test_they_are_seen_as_soon_as_an_async_block_has_ended(
        self, tallystick_broker: MemoryBroker, tallystick_async_client: tallystick.AsyncClient, shop: Shop
    ) -> None:
        async with tallystick_async_client as ts:
            for number in range(20):
                async with ts.transaction(shop.conn) as tx:
                    tx.send("orders", {"number": number})
                tallystick_broker.assert_sent("orders", {"number": number}, times=1, within=0)
                tallystick_broker.assert_committed(tx.gid)

    def test_a_topic_that_nobody_used_is_empty(self, tallystick_broker: MemoryBroker) -> None:
        assert tallystick_broker.messages("orders") == []
        tallystick_broker.assert_nothing_sent("orders")
        tallystick_broker.assert_nothing_sent()

    @pytest.mark.parametrize(
        ("sent", "expected"),
        [
            ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
            ({"a": 1}, {"a": ANY}),
            ("hat", "hat"),
            (b"\xff", b"\xff"),
            (Order("hat"), Order("hat")),
            (Order("hat"), {"item": "hat"}),
            (None, None),
        ],
    )
    def test_values_are_compared_as_they_are_sent(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, sent: object, expected: object
    ) -> None:
        tallystick_client.send("orders", sent)
        tallystick_broker.assert_sent("orders", expected)

    @pytest.mark.parametrize(
        "wanted", [{"value": 2}, {"key": None}, {"key": "b"}, {"tag": "x"}, {"headers": {"h": "j"}}]
    )
    def test_another_message_is_not_taken_for_it(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, wanted: dict[str, object]
    ) -> None:
        tallystick_client.send("orders", 1, key="a", headers={"h": "i"})
        with pytest.raises(AssertionError, match="was not sent"):
            tallystick_broker.assert_sent("orders", **{"within": 0, **wanted})  # type: ignore[arg-type]

    def test_what_another_thread_sends_is_waited_for(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
    ) -> None:
        later = threading.Timer(0.1, tallystick_client.send, ("orders", 1))
        later.start()
        tallystick_broker.assert_sent("orders", 1, within=60)
        later.join()

    def test_level_0_arrives_before_one_looks(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
    ) -> None:
        for number in range(50):
            tallystick_client.send("orders", number, level=0)
        assert len(tallystick_broker.messages("orders")) == 50


class TestFailures:
    def test_it_shows_what_was_sent_instead(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
    ) -> None:
        tallystick_client.send("orders", {"item": "hat"}, key="alice")
        with pytest.raises(AssertionError) as failed:
            tallystick_broker.assert_sent("orders", {"item": "coat"}, within=0)
        assert "a message on 'orders' with value={'item': 'coat'} was not sent" in str(failed.value)
        assert "'orders': {\"item\":\"hat\"}, key='alice'" in str(failed.value)

    def test_the_place_that_pytest_shows_is_the_test_s(self, tallystick_broker: MemoryBroker) -> None:
        for wrong in (
            lambda: tallystick_broker.assert_sent("orders", within=0),
            lambda: tallystick_broker.assert_called("http://nowhere"),
            lambda: tallystick_broker.assert_committed("unknown"),
        ):
            with pytest.raises(AssertionError) as failed:
                wrong()
            assert failed.traceback.filter(failed)[-1].path == Path(__file__)

    def test_it_counts(self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client) -> None:
        for _ in range(3):
            tallystick_client.send("orders", 1)
        with pytest.raises(AssertionError, match="was not sent 2 times, but 3 times"):
            tallystick_broker.assert_sent("orders", 1, times=2)
        with pytest.raises(ValueError, match="assert_nothing_sent"):
            tallystick_broker.assert_sent("orders", 1, times=0)

    def test_it_shows_what_is_pending_and_what_was_rolled_back(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
    ) -> None:
        pending, undone = tallystick_client.new_gid(), tallystick_client.new_gid()
        tallystick_client.prepare(pending, [tallystick.outgoing("orders", {"item": "hat"})])
        tallystick_client.prepare(undone, [tallystick.outgoing("orders", {"item": "coat"})])
        tallystick_client.rollback(undone)
        with pytest.raises(AssertionError) as failed:
            tallystick_broker.assert_sent("orders", within=0)
        said = str(failed.value)
        assert "sent: nothing" in said
        assert f'\'orders\': {{"item":"hat"}} (gid {pending})' in said
        assert f"{pending}: prepared, nobody has told its outcome (group 'tests')" in said
        assert f"{undone}: rolled_back by producer" in said

    def test_half_messages_delayed_ones_and_calls_are_not_nothing(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
    ) -> None:
        tallystick_client.prepare(tallystick_client.new_gid(), [tallystick.outgoing("half", 1)])
        tallystick_client.send("delayed", 1, delay=60)
        for topic in ("half", "delayed"):
            with pytest.raises(AssertionError, match=f"something was sent on '{topic}'"):
                tallystick_broker.assert_nothing_sent(topic)
        tallystick_broker.assert_nothing_sent("other")
        tallystick_broker.reset()
        tallystick_client.call(SHOP)
        with pytest.raises(AssertionError, match=r"something was sent\.(\n|.)*inventory"):
            tallystick_broker.assert_nothing_sent()

    def test_outcomes_are_told_apart(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
    ) -> None:
        gid = tallystick_client.new_gid()
        with pytest.raises(AssertionError, match=f"transaction {gid} was never prepared here"):
            tallystick_broker.assert_pending(gid)
        tallystick_client.prepare(gid, [tallystick.outgoing("orders", 1)])
        tallystick_broker.assert_pending(gid)
        assert tallystick_broker.outcome(gid) is None
        with pytest.raises(AssertionError, match=r"not committed: .*prepared"):
            tallystick_broker.assert_committed(gid)
        tallystick_client.commit(gid)
        tallystick_broker.assert_committed(gid)
        assert tallystick_broker.outcome(gid) == "committed"
        with pytest.raises(AssertionError, match=r"not rolled_back: .*committed by producer"):
            tallystick_broker.assert_rolled_back(gid)

    def test_a_transaction_that_nobody_can_decide_is_named(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
    ) -> None:
        gid = tallystick_client.new_gid()
        tallystick_client.prepare(gid, [tallystick.outgoing("orders", 1)])
        with pytest.raises(AssertionError, match=f"nobody could tell the outcome of\n  {gid}: prepared"):
            tallystick_broker.check_back(timeout=0.2)


class TestCalls:
    def test_they_are_kept_and_not_made(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop
    ) -> None:
        with tallystick_client.transaction(shop.conn) as tx:
            tx.call(SHOP, {"item": "hat"})
        call = tallystick_broker.assert_called(SHOP, {"item": "hat"}, times=1)
        assert (call.json(), call.gid, call.state) == ({"item": "hat"}, tx.gid, "waiting")
        assert tallystick_broker.calls() == [call]
        with pytest.raises(AssertionError, match=r"was not called with 'coat'(.|\n)*inventory.internal"):
            tallystick_broker.assert_called(SHOP, "coat")

    def test_those_of_a_transaction_without_an_outcome_do_not_count(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
    ) -> None:
        gid = tallystick_client.new_gid()
        tallystick_client.prepare(gid, [], calls=[tallystick.outgoing_call(SHOP, 1)])
        assert tallystick_broker.calls() == []
        with pytest.raises(AssertionError, match="was not called"):
            tallystick_broker.assert_called(SHOP)
        tallystick_client.rollback(gid)
        assert tallystick_broker.calls() == []
        tallystick_broker.assert_nothing_sent()

    def test_they_can_be_answered_for_code_that_waits(self, shop: Shop) -> None:
        with MemoryBroker(calls="answered") as broker, tallystick.Client(broker.url, group="tests") as ts:
            with ts.transaction(shop.conn) as tx:
                tx.call(SHOP, {"item": "hat"})
                tx.commit(wait=True)
            assert broker.assert_called(SHOP).state == "done"

    def test_they_can_be_made_to_loopback_and_nowhere_else(self) -> None:
        with service() as url, MemoryBroker(calls="made") as broker:
            with tallystick.Client(broker.url, group="tests") as ts:
                ts.call(url, wait=True)
                with pytest.raises(tallystick.errors.NotAllowed):
                    ts.call(SHOP)
            assert broker.assert_called(url).state == "done"

    def test_an_unknown_way_is_refused(self) -> None:
        with pytest.raises(ValueError, match="none of kept, answered, made"):
            MemoryBroker(calls="ignored").start()  # type: ignore[arg-type]


class TestLife:
    def test_it_leaves_no_thread_and_no_warning(self) -> None:
        before = set(threading.enumerate())
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with MemoryBroker() as broker, tallystick.Client(broker.url) as ts:
                ts.send("orders", 1)
                broker.assert_sent("orders", 1)
            del broker, ts
            gc.collect()
        left = [thread for thread in set(threading.enumerate()) - before if "broker" in thread.name]
        assert left == []
        assert [str(one.message) for one in warned] == []

    def test_it_can_be_started_and_stopped_without_a_with(self) -> None:
        broker = MemoryBroker()
        with pytest.raises(TallystickError, match="was not started"):
            broker.messages("orders")
        assert broker.start() is broker
        url = broker.url
        assert broker.start().url == url
        assert _get(url, "/readyz") == 200
        broker.stop()
        broker.stop()
        with pytest.raises(OSError, match="refused"):
            _get(url, "/readyz")

    def test_a_reset_forgets_everything_and_keeps_the_url(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop
    ) -> None:
        url = tallystick_broker.url
        for number in range(5):
            with tallystick_client.transaction(shop.conn) as tx:
                tx.send("orders", number)
            tallystick_broker.reset()  # with the commit of the block still on its way
            assert tallystick_broker.url == url
            assert tallystick_broker.transactions() == []
            tallystick_broker.assert_nothing_sent()

    def test_a_subscription_goes_on_after_a_reset(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
    ) -> None:
        seen: list[int] = []
        tallystick_client.subscribe("orders")(lambda message: seen.append(message.json()))
        tallystick_client.start()
        tallystick_broker.reset()
        tallystick_client.send("orders", 1)
        eventually_equal(lambda: seen, [1])

    def test_settings_are_those_of_a_broker(self) -> None:
        with MemoryBroker(default_queues=3, max_message_bytes=100) as broker, tallystick.Client(broker.url) as ts:
            ts.send("orders", 1)
            assert ts.topic("orders").queues == 3
            with pytest.raises(tallystick.errors.TooLarge):
                ts.send("orders", "x" * 101)
        with pytest.raises(tallystick.errors.ConfigError, match="no such setting"):
            MemoryBroker(queues=3).start()

    def test_a_start_that_fails_leaves_no_thread(self) -> None:
        with pytest.raises(tallystick.errors.ConfigError, match="alert_url"):
            MemoryBroker(calls="made", alert_url="http://elsewhere.internal:80/alerts").start()
        assert [thread.name for thread in threading.enumerate()].count("tallystick-test-broker") <= 1  # the fixture's

    def test_time_can_be_let_pass(self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client) -> None:
        tallystick_client.send("orders", 1, delay=3600)
        assert tallystick_broker.messages("orders") == []
        tallystick_broker.advance(3601)
        tallystick_broker.assert_sent("orders", 1, within=60)

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of newer Pythons, where there are threads
    def test_a_forked_child_is_a_client_as_any_other(self, tallystick_broker: MemoryBroker) -> None:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with tallystick.Client(tallystick_broker.url) as ts:
                    ts.send("orders", "from the child")
                try:
                    tallystick_broker.messages("orders")
                except TallystickError as refused:
                    code = 0 if "parent process" in str(refused) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        tallystick_broker.assert_sent("orders", "from the child")

    def test_dtm_clients_reach_it_too(self, tallystick_broker: MemoryBroker) -> None:
        assert _get(tallystick_broker.url, "/api/dtmsvr/newGid") == 200

    def test_the_broker_needs_neither_grpc_nor_rocksdb_nor_uvicorn(self) -> None:
        program = (
            "import sys, time\n"
            "began = time.perf_counter()\n"
            "import tallystick.testing.plugin\n"
            "light = set(sys.modules)\n"
            "loaded = time.perf_counter()\n"
            "from tallystick.testing import MemoryBroker\n"
            "imported = time.perf_counter()\n"
            "with MemoryBroker() as broker:\n"
            "    started = time.perf_counter()\n"
            "    broker.messages('orders')\n"
            "assert not light & {'msgspec', 'asyncio', 'aiohttp', 'tallystick.client', 'tallystick.broker'}, light\n"
            "heavy = {'grpc', 'google.protobuf', 'rocksdict', 'uvicorn', 'uvloop', 'pyarrow', 'typer', 'pyspark'}\n"
            "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
            "print(f'plugin {loaded - began:.3f} s, broker imported {imported - loaded:.3f} s, "
            "started {started - imported:.4f} s')\n"
        )
        done = subprocess.run(
            [sys.executable, *FORKING_WARNINGS, "-c", program], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        print(done.stdout)


class TestTrouble:
    def test_a_broker_that_is_down_is_back_with_what_it_had(self, tallystick_broker: MemoryBroker, shop: Shop) -> None:
        with tallystick.Client(tallystick_broker.url, group="tests", timeout=0.5) as ts:
            ts.send("orders", 1)
            with tallystick_broker.down(), pytest.raises(BrokerUnavailable), ts.transaction(shop.conn) as tx:
                tx.send("orders", 2)
            assert not shop.conn.in_transaction
            assert [message.json() for message in tallystick_broker.messages("orders")] == [1]
        with tallystick.Client(tallystick_broker.url, group="tests") as ts, ts.transaction(shop.conn) as tx:
            tx.send("orders", 3)
        tallystick_broker.assert_sent("orders", 3)

    def test_a_commit_whose_broker_is_down_is_told_when_it_is_back(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop
    ) -> None:
        with tallystick_client.transaction(shop.conn, mode="outbox") as tx:
            tx.send("orders", 1)
            tallystick_broker.pause()
        assert tallystick_broker.messages("orders") == []
        tallystick_broker.resume()
        tallystick_broker.assert_sent("orders", 1, within=60)

    def test_a_reset_brings_it_back(self, tallystick_broker: MemoryBroker) -> None:
        tallystick_broker.pause()
        tallystick_broker.reset()
        assert _get(tallystick_broker.url, "/readyz") == 200

    @pytest.mark.parametrize("operation", ["prepare", "commit"])
    def test_a_lost_answer_is_asked_for_again(
        self, tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client, shop: Shop, operation: str
    ) -> None:
        losing: Any = tallystick_broker.lost_answer
        with losing(operation) as answers, tallystick_client.transaction(shop.conn) as tx:
            tx.send("orders", 1)
        assert answers.lost == 1
        tallystick_broker.assert_sent("orders", 1, times=1)
        tallystick_broker.assert_committed(tx.gid)

    def test_a_prepare_that_is_never_answered_fails_the_block_and_is_rolled_back(
        self, tallystick_broker: MemoryBroker, shop: Shop
    ) -> None:
        with tallystick.Client(tallystick_broker.url, group="tests", timeout=0.5) as ts:

            def order() -> None:
                with ts.transaction(shop.conn) as tx:
                    shop.conn.execute("insert into orders values ('hat')")
                    tx.send("orders", 1)

            with tallystick_broker.lost_answer("prepare", times=None), pytest.raises(BrokerUnavailable):
                order()
            tallystick_broker.check_back()
        assert [view.state for view in tallystick_broker.transactions()] == ["rolled_back"]
        assert shop.items() == []

    def test_an_answer_that_was_not_lost_is_an_error(self, tallystick_broker: MemoryBroker) -> None:
        with pytest.raises(AssertionError, match="no answer was lost"), tallystick_broker.lost_answer("commit"):
            pass


@contextlib.contextmanager
def service() -> Iterator[str]:
    """A service that answers every call with success."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not to the tests' output."""

    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/reserve"
        server.shutdown()
        thread.join()


def _get(url: str, path: str) -> int:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def test_what_is_delayed_is_visible_when_its_time_has_passed(
    tallystick_broker: MemoryBroker, tallystick_client: tallystick.Client
) -> None:
    tallystick_client.send("later", 1, delay=60)
    assert tallystick_broker.messages("later") == []
    tallystick_broker.advance(61)
    assert [message.json() for message in tallystick_broker.messages("later")] == [1]


def test_an_answer_that_cannot_be_lost_is_refused(tallystick_broker: MemoryBroker) -> None:
    with pytest.raises(ValueError, match="'comit' is none of prepare, commit"), tallystick_broker.lost_answer("comit"):  # type: ignore[arg-type]
        pass


def test_time_does_not_go_back(tallystick_broker: MemoryBroker) -> None:
    with pytest.raises(InvalidRequest, match="seconds: -5 is not a time"):
        tallystick_broker.advance(-5)
