"""Reconciliation of real databases and a real broker: damage of each kind is planted, found, and nothing else is."""

from __future__ import annotations

import csv
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from reconcile_ground import EFFECTS, Broker, Service, transact
from reconcile_load import Load, groups_of, settled

import tallystick
from brokers import running_broker
from eventually import eventually
from servers import Server
from tallystick.barrier import decide, mark_committed, outbox_put
from tallystick.cli import main
from tallystick.cli.spark.reconcile import exit_code
from tallystick.core.errors import InvalidRequest, TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Rollback, Send
from tallystick.spark.jobs.reconcile import Consumer, ReconcileSettings, ReconcileSummary, run_reconcile
from tallystick.spark.jobs.reconcile.summary import CODES, KINDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgresql, pytest.mark.mariadb]

Finding = tuple[str, str]  # code; message id, or gid where it is about a transaction
STORES = 3  # transactions of each kind on each of the two databases of producers


class World:
    """Two producers' databases, one broker, two consumer groups: billing (with effects) and mailing."""

    def __init__(self, process: Any, postgres: Server, mariadb: Server, directory: Path) -> None:
        self.broker = Broker(process)
        self.shop, self.depot = Service(postgres), Service(directory / "depot.db")
        self.billing, self.mailing = Service(mariadb), Service(directory / "mailing.db")
        self.gids: list[str] = []

    def settings(self, **changes: Any) -> ReconcileSettings:
        billing = Consumer(group="billing", database=self.billing.url, effects=EFFECTS)
        mailing = Consumer(group="mailing", database=self.mailing.url)
        given: dict[str, Any] = {
            "brokers": (self.broker.url,),
            "producers": (self.shop.url, self.depot.url),
            "consumers": (billing, mailing),
            "grace_ms": 0,  # everything here is at rest
        }
        return ReconcileSettings(**{**given, **changes})

    def produce(self) -> None:
        """All ways in which messages come to be."""
        for service, group in ((self.shop, "shop"), (self.depot, "depot")):
            with tallystick.Client(self.broker.url, group=group, database=service.open) as client:
                self.gids += [transact(client, service, "orders", "letters") for _ in range(STORES)]
                self.gids.append(transact(client, service, "orders", mode="outbox"))
                with pytest.raises(ZeroDivisionError), _failing(client, service):
                    pass
        in_an_hour = self.broker.info()["now_ms"] + 3_600_000
        self.broker.do(Send([OutgoingMessage("orders", b"in an hour", deliver_at=in_an_hour)], "delayed-1"))
        self.broker.do(Send([OutgoingMessage("orders", b"without a gid")]))
        self.broker.do(Send([OutgoingMessage("orders", b"with a gid of its own")], "sent-1"))

    def consume(self, bury: frozenset[str] = frozenset()) -> None:
        self.broker.consume("billing", "orders", self.billing, bury)
        self.broker.consume("mailing", "letters", self.mailing)


class _failing:
    """A transaction that is rolled back by an error in its block."""

    def __init__(self, client: tallystick.Client, service: Service) -> None:
        self._client, self._service = client, service

    def __enter__(self) -> None:
        connection = self._service.open()
        try:
            with self._client.transaction(connection) as tx:
                tx.send("orders", "never")
                raise ZeroDivisionError
        finally:
            connection.close()

    def __exit__(self, *_: object) -> None:
        return None


@pytest.fixture(scope="module")
def world(postgres: Server, mariadb: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_broker(check_after="1h") as process:
        made = World(process, postgres, mariadb, tmp_path_factory.mktemp("services"))
        made.produce()
        made.consume()
        yield made


def found(summary: ReconcileSummary) -> Counter[Finding]:
    return Counter((one.code, one.message_id or one.gid) for one in summary.examples)


def reconcile(spark: SparkSession, settings: ReconcileSettings) -> ReconcileSummary:
    return run_reconcile(spark, msgspec.structs.replace(settings, examples=1_000))


# --- a system that is as it should be --------------------------------------------------------------------------------


@pytest.mark.full
def test_a_clean_system_is_clean(spark: SparkSession, world: World) -> None:
    summary = reconcile(spark, world.settings())
    assert found(summary) == Counter()
    assert (summary.verdict, summary.damage, summary.unfinished) == ("clean", 0, 0)
    counts = summary.counts
    committed = 2 * STORES
    assert counts["producer committed"] == committed  # the outbox has no barrier row
    assert counts["broker committed"] == committed + 2 + 1 + 1  # by outbox, sent, and delayed
    assert counts["messages in log"] == 2 * committed + 2 + 2
    assert counts["messages without gid"] == 1
    assert counts["sent without barrier"] == 2 + 1
    assert counts["effects of billing"] == counts["meant for billing"] == committed + 2 + 2
    assert counts["in the inbox of mailing"] == counts["meant for mailing"] == committed
    assert [reach.side for reach in summary.reach] == [
        "barrier rows",
        "transactions",
        "log",
        "inbox of billing",
        "inbox of mailing",
    ]


@pytest.mark.full
def test_whatever_happens_between_two_snapshots_is_no_damage(spark: SparkSession, world: World) -> None:
    """The order of reading, step by step: whole transactions, from begin to effect, before each side is read."""
    steps: list[str] = []
    with tallystick.Client(world.broker.url, group="shop", database=world.shop.open) as client:

        def go_on(step: str) -> None:
            steps.append(step)
            world.gids.append(transact(client, world.shop, "orders", "letters"))
            world.gids.append(transact(client, world.shop, "orders", mode="outbox"))
            world.consume()

        summary = run_reconcile(spark, world.settings(grace_ms=2_000), go_on)
    assert {"reading inboxes", "reading log", "reading transactions", "reading barrier rows"} <= set(steps)
    assert summary.damage == 0, found(summary)
    # The snapshots do differ: whoever compares them without a thought sees losses.
    counts = summary.counts
    assert counts["producer committed"] > counts["in the inbox of mailing"]
    assert counts["messages in log"] > counts["in the inbox of mailing"] + counts["in the inbox of billing"]


@pytest.mark.full
def test_without_a_broker_what_was_sent_otherwise_has_no_witness(spark: SparkSession, world: World) -> None:
    """Messages that came by way of the outbox, or as they are, have no barrier row; only a broker could say so."""
    summary = reconcile(spark, world.settings(brokers=()))
    sent = [gid for gid in world.gids if gid not in _barrier_gids(world)]
    assert found(summary) == Counter(("applied_without_commit", gid) for gid in [*sent, "sent-1"])


def _barrier_gids(world: World) -> set[str]:
    gids: set[str] = set()
    for service in (world.shop, world.depot):
        connection = service.open()
        cursor = connection.cursor()
        cursor.execute("select gid from tallystick_barrier where op = 'msg'")
        gids |= {row[0] for row in cursor.fetchall()}
        connection.close()
    return gids


def test_one_side_is_not_enough(spark: SparkSession, world: World) -> None:
    with pytest.raises(InvalidRequest, match="at least two of the three sides"):
        run_reconcile(spark, ReconcileSettings(brokers=(world.broker.url,)))


def test_a_group_that_nobody_knows_is_refused_and_not_called_clean(spark: SparkSession, world: World) -> None:
    wrong = Consumer(group="biling", database=world.billing.url)
    with pytest.raises(InvalidRequest, match="no broker knows the group 'biling'"):
        run_reconcile(spark, world.settings(consumers=(wrong,)))


def test_a_database_without_our_tables_is_told(spark: SparkSession, world: World, tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with pytest.raises(TallystickError, match="create_tables"):
        run_reconcile(spark, world.settings(producers=(f"sqlite:///{tmp_path}/empty.db",), consumers=()))


def test_a_query_for_effects_that_fails_is_told(spark: SparkSession, world: World) -> None:
    for database in (world.billing, world.mailing):
        wrong = Consumer(group="mailing", database=database.url, effects="select a as message_id from nowhere")
        with pytest.raises(TallystickError, match=r"consumer mailing: .*nowhere"):
            run_reconcile(spark, world.settings(consumers=(wrong,)))


@pytest.mark.full
def test_a_message_on_two_brokers_is_there_twice(spark: SparkSession, tmp_path: Path) -> None:
    service = Service(tmp_path / "service.db")
    with running_broker() as one, running_broker() as other:
        for process in (one, other):
            Broker(process).do(Send([OutgoingMessage("orders", b"x")], "on-both"))
        Broker(one).do(Send([OutgoingMessage("orders", b"x")], "on-one"))
        summary = reconcile(spark, ReconcileSettings(brokers=(one.url, other.url), producers=(service.url,)))
    assert found(summary) == Counter({("twice_in_log", "on-both/0"): 1})
    assert summary.examples[0].explanation.endswith("it is there 2 times")


# --- damage --------------------------------------------------------------------------------------------------------


def plant(world: World) -> Counter[Finding]:
    """One of each kind, by real operations; returns what is to be found."""
    broker, shop, depot = world.broker, world.shop, world.depot
    expected: Counter[Finding] = Counter()

    def add(code: str, identity: str) -> None:
        expected[(code, identity)] += 1

    # Committed by the producer, unknown to the broker.
    shop.run(mark_committed("lost-before-broker"))
    add("unknown_to_broker", "lost-before-broker")
    # Outcomes that differ.
    broker.do(Rollback(broker.prepare("said-committed", "orders")))
    depot.run(mark_committed("said-committed"))
    add("committed_at_producer", "said-committed")
    broker.prepare("said-rolled-back", "nobody")
    with_own_connection(shop, decide("said-rolled-back"))
    broker.do(Commit("said-rolled-back"))
    add("rolled_back_at_producer", "said-rolled-back")
    # Visible without a committed local transaction.
    broker.do(Commit(broker.prepare("ghost-of-shop", "nobody")))
    add("no_barrier_row", "ghost-of-shop")
    # No outcome yet; one of them committed at the producer.
    broker.prepare("in-doubt", "nobody")
    broker.prepare("in-doubt-committed", "nobody")
    shop.run(mark_committed("in-doubt-committed"))
    add("prepared", "in-doubt")
    add("prepared", "in-doubt-committed")
    shop.run(outbox_put("in-outbox", broker.url, b""))
    add("outbox", "in-outbox")
    # A part of its messages is gone with the topic that they were in.
    broker.prepare("in-deleted-topic", "deleted")
    shop.run(mark_committed("in-deleted-topic"))
    broker.do(Commit("in-deleted-topic"))
    assert broker.ask("DELETE", "/v1/topics/deleted").status == 204
    add("missing_in_log", "in-deleted-topic")
    return expected + plant_at_consumers(world)


def plant_at_consumers(world: World) -> Counter[Finding]:
    broker, billing, mailing = world.broker, world.billing, world.mailing
    names = ("skipped", "no-effect", "doubled", "buried", "late", "waiting")
    for name in names:
        broker.do(Send([OutgoingMessage("orders" if name != "waiting" else "letters", b"x")], name))
    broker.do(Send([OutgoingMessage("letters", b"x")], "unread"))
    ids = {name: f"{name}/0" for name in names}
    broker.consume("billing", "orders", billing, frozenset({ids["buried"]}))
    billing.execute(f"delete from tallystick_inbox where message_id = '{ids['skipped']}'")
    billing.execute(f"delete from {EFFECTS} where message_id in ('{ids['skipped']}', '{ids['no-effect']}')")
    billing.execute(f"insert into {EFFECTS} values ('{ids['doubled']}')")
    billing.execute(f"insert into {EFFECTS} values ('made-up/7')")
    # A message that a committed transaction never had, and one with a name from long ago.
    billing.execute(f"insert into {EFFECTS} values ('late/1')")
    long_ago = f"0a1b2c3d-{int(time.time() * 1000) - 90 * 86_400_000:011x}{'0' * 20}/0"
    late = f"created_at + interval 2 hour where message_id = '{ids['late']}'"
    assert billing.execute(f"update tallystick_inbox set created_at = {late}") == 1
    for invented in ("invented/0", long_ago):
        mailing.execute(
            f"insert into tallystick_inbox values ('mailing', '{invented}', strftime('%Y-%m-%d %H:%M:%f', 'now'))"
        )
    found: list[Finding] = [("not_applied", ids["skipped"]), ("no_effect", ids["no-effect"])]
    found += [("effect_twice", ids["doubled"]), ("dead_letter", ids["buried"]), ("applied_late", ids["late"])]
    found += [("waiting", ids["waiting"]), ("waiting", "unread/0")]
    found += [("applied_not_in_log", one) for one in ("made-up/7", "late/1", "invented/0", long_ago)]
    return Counter(found)


def with_own_connection(service: Service, operation: Any) -> None:
    """An operation that begins and ends transactions of its own."""
    from tallystick.barrier import adapt_sync, run_sync

    connection = service.open()
    run_sync(adapt_sync(connection), operation)
    connection.close()


@pytest.fixture(scope="module")
def damaged(world: World) -> tuple[World, Counter[Finding]]:
    return world, plant(world)


def test_each_kind_of_damage_is_found_and_nothing_else(
    spark: SparkSession, damaged: tuple[World, Counter[Finding]], tmp_path: Path
) -> None:
    world, expected = damaged
    output = str(tmp_path / "findings.parquet")
    summary = reconcile(spark, world.settings(late_after_ms=3_600_000, output=output))
    assert found(summary) == expected
    assert summary.verdict == "damaged"
    assert summary.found == {
        "lost": 4,
        "duplicated": 1,
        "ghost": 5,
        "contradictory": 2,
        "in_doubt": 4,
        "late": 3,
    }
    written = spark.read.parquet(output).collect()
    assert Counter((row["code"], row["message_id"] or row["gid"]) for row in written) == expected
    assert all(row["explanation"] and row["kind"] and row["side"] for row in written)
    doubt = next(one for one in summary.examples if one.gid == "in-doubt-committed")
    assert "the producer's database says committed" in doubt.explanation
    assert doubt.age_ms is not None
    assert 0 <= doubt.age_ms < 600_000
    waiting = next(one for one in summary.examples if one.gid == "unread")
    assert (waiting.group, waiting.topic, waiting.side) == ("mailing", "letters", "consumer")


@pytest.mark.full
def test_without_one_side_what_the_others_show_is_still_found(
    spark: SparkSession, damaged: tuple[World, Counter[Finding]]
) -> None:
    world, expected = damaged
    at_consumers = {"not_applied", "no_effect", "effect_twice", "dead_letter", "waiting", "applied_not_in_log"}
    no_producers = found(reconcile(spark, world.settings(producers=())))
    visible = at_consumers | {"prepared", "missing_in_log"}
    assert no_producers == Counter({one: n for one, n in expected.items() if one[0] in visible})
    no_consumers = found(reconcile(spark, world.settings(consumers=())))
    assert no_consumers == Counter(
        {one: n for one, n in expected.items() if one[0] not in at_consumers | {"applied_late"}}
    )


@pytest.mark.full
def test_producers_whose_database_is_not_given_are_left_alone(
    spark: SparkSession, damaged: tuple[World, Counter[Finding]]
) -> None:
    """With the shop's database alone the depot's transactions would all be ghosts."""
    world, _ = damaged
    only_shop = world.settings(producers=(world.shop.url,), consumers=())
    ghosts = [one for one in reconcile(spark, only_shop).examples if one.code == "no_barrier_row"]
    assert len(ghosts) == 1 + STORES
    chosen = reconcile(spark, msgspec.structs.replace(only_shop, producer_groups=("shop",)))
    assert [one.gid for one in chosen.examples if one.code == "no_barrier_row"] == ["ghost-of-shop"]


@pytest.mark.full
def test_a_window_leaves_out_what_began_before_it(spark: SparkSession, damaged: tuple[World, Counter[Finding]]) -> None:
    world, _ = damaged
    broker = world.broker
    now = broker.info()["now_ms"]
    later = world.settings(since_ms=now + 1)
    eventually(lambda: broker.info()["now_ms"] > now)
    broker.do(Commit(broker.prepare("ghost-in-window", "nobody")))
    assert set(found(reconcile(spark, later))) == {("no_barrier_row", "ghost-in-window")}
    nothing = reconcile(spark, world.settings(since_ms=now - 600_000_000, until_ms=now - 599_000_000))
    assert (found(nothing), nothing.counts["transactions"]) == (Counter(), 0)


# --- the command line ------------------------------------------------------------------------------------------------


def arguments(world: World) -> list[str]:
    return [
        *("spark", "reconcile", "--url", world.broker.url, "--grace", "0s"),
        *("--producer", world.shop.url, "--producer", world.depot.url),
        *("--consumer", f"mailing={world.mailing.url}"),
    ]


@pytest.mark.full
def test_the_exit_code_and_the_file_tell_what_was_found(
    spark: SparkSession,
    damaged: tuple[World, Counter[Finding]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    world, _ = damaged
    output = tmp_path / "findings.csv"
    assert run([*arguments(world), "--output", str(output), "--json"]) == 6
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "damaged"
    assert told["damage"] == sum(told["found"][kind] for kind in ("lost", "duplicated", "ghost", "contradictory"))
    (part,) = output.glob("part-*.csv")
    with part.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(told["found"].values())
    assert {"kind", "code", "side", "gid", "message_id", "at", "age_ms", "explanation"} <= rows[0].keys()
    codes = {(row["code"], row["message_id"] or row["gid"]) for row in rows}
    assert {("applied_not_in_log", "invented/0"), ("committed_at_producer", "said-committed")} <= codes


def run(given: list[str]) -> int:
    try:
        return main(given)
    except SystemExit as ended:
        return int(ended.code or 0)


@pytest.mark.parametrize(
    ("codes", "allow", "ends_with"),
    [
        ({}, False, 0),
        ({"applied_late": 3}, False, 0),
        ({"prepared": 1}, False, 7),
        ({"waiting": 1}, False, 7),
        ({"prepared": 1}, True, 0),
        ({"not_applied": 1, "prepared": 1}, True, 6),
    ],
)
def test_damage_and_doubt_have_exit_codes_of_their_own(codes: dict[str, int], allow: bool, ends_with: int) -> None:
    found = Counter(dict.fromkeys(KINDS, 0))
    for code, number in codes.items():
        found[CODES[code].kind] += number
    summary = ReconcileSummary(
        found=dict(found),
        codes=codes,
        counts={},
        reach=(),
        since_ms=None,
        until_ms=0,
        examples=(),
        notes=(),
        output="",
        seconds=0.0,
    )
    assert exit_code(summary, allow) == ends_with


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--consumer", "billing"], "--consumer: 'billing' is not of the form GROUP=..."),
        (["--effects", "billing=credit.id"], "--effects: group 'billing' is not given by --consumer"),
        (["--consumer", "b=sqlite:///b.db", "--effects", "b=credit"], "neither TABLE.COLUMN nor a query"),
        (["--producer", "sqlite:///a.db", "--output", "out.json"], "must end in .parquet or .csv"),
        (["--producer", "sqlite:///a.db", "--grace", "soon"], "--grace"),
        (["--no-broker", "--producer", "sqlite:///a.db"], "at least two of the three sides"),
    ],
)
def test_wrong_usage_is_told_before_spark_starts(
    options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["spark", "reconcile", *options]) == 2
    assert told in capsys.readouterr().err


# --- a system that runs --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_running_system_gives_no_false_alarm(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All modes of producers and both kinds of consumers, under way while the sides are read one after the other."""
    with running_broker(check_after="1s", check_interval="200ms") as process, Load(process.url, tmp_path) as load:
        broker = Broker(process)
        eventually(lambda: load.done > 20 and groups_of(broker) == {"by-inbox", "by-offset"})
        settings = ReconcileSettings(
            brokers=(process.url,),
            producers=(load.shop.url,),
            consumers=(
                Consumer(group="by-inbox", database=load.inbox.url),
                Consumer(group="by-offset", database=load.offset.url, effects=EFFECTS),
            ),
            grace_ms=1_000,
            consumer_dedup=True,
        )
        with pytest.raises(InvalidRequest, match="consumer-dedup"):
            run_reconcile(spark, msgspec.structs.replace(settings, consumer_dedup=False))
        for _ in range(2):
            before = load.done
            summary = reconcile(spark, settings)
            assert load.done > before  # it did run meanwhile
            assert summary.damage == 0, found(summary)
        load.stop_producing()
        eventually(lambda: settled(broker) and load.unsent() == 0)
        check_at_rest(spark, broker, load, settings, capsys)


def check_at_rest(
    spark: SparkSession, broker: Broker, load: Load, settings: ReconcileSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then all sets are equal. What is in doubt is told apart, and what was trimmed by right is not missed."""
    given = [
        *("spark", "reconcile", "--url", broker.url, "--grace", "0s", "--consumer-dedup", "--producer", load.shop.url),
        *("--consumer", f"by-inbox={load.inbox.url}", "--effects", f"by-inbox={EFFECTS}.message_id"),
    ]
    assert run(given) == 0, capsys.readouterr()
    assert capsys.readouterr().out.splitlines()[-1] == "clean"
    broker.prepare("nobody-knows", "busy", group="busy")
    ends = broker.ask("GET", "/v1/topics/busy").json()["ends"]
    broker.ask("POST", "/v1/topics/busy/trim", {"offsets": {"0": ends[0] // 2}})
    summary = reconcile(spark, msgspec.structs.replace(settings, grace_ms=0))
    assert found(summary) == Counter({("prepared", "nobody-knows"): 1})
    assert (summary.verdict, summary.damage, summary.unfinished) == ("clean so far", 0, 1)
    (log,) = [reach for reach in summary.reach if reach.side == "log"]
    assert log.since_ms is not None
