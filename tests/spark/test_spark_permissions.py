"""Jobs under a token that may not see everything: refused, or named in what they report, and never a wrong verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from archive_support import run

from access_tokens import ADMIN, Token, token
from access_tokens import settings as known_tokens
from brokers import BrokerProcess, running_broker
from tallystick.core.errors import Forbidden
from tallystick.core.ids import new_gid
from tallystick.credentials.credentials import Credentials, find_credentials
from tallystick.link import Link
from tallystick.spark.jobs.reconcile import Consumer, ReconcileSettings, run_reconcile
from tallystick.spark.jobs.reconcile.brokers import require_permissions
from tallystick.spark.jobs.report.job import _reported
from tallystick.spark.jobs.report.settings import ReportSettings
from tallystick.spark.permissions import Permissions, permissions_at

NO_SPARK = cast(Any, None)
READER = token("every", "reader")
TOPICS = token("topics", "reader", topics=["shop.*"])
GROUPS = token("groups", "reader", groups=["shop"])
PRODUCER = token("sender", "producer")
OPERATOR = token("all-operator", "operator")
OPERATES_SOME = token("half-operator", "operator", groups=["shop"])
TOKENS = (READER, TOPICS, GROUPS, PRODUCER, OPERATOR, OPERATES_SOME)


@pytest.fixture(scope="module")
def guarded() -> Iterator[BrokerProcess]:
    with running_broker(log_level="warning", **known_tokens(*TOKENS)) as broker:
        yield broker


Shown = Callable[[Token], Credentials]


@pytest.fixture
def shown(tmp_path: Path) -> Shown:
    def credentials(one: Token) -> Credentials:
        file = tmp_path / one.table["name"]
        file.write_text(one.text)
        return find_credentials(token_file=file)

    return credentials


@pytest.fixture
def topic(guarded: BrokerProcess, shown: Shown) -> str:
    name = f"shop.{new_gid()}"
    with Link(guarded.url, credentials=shown(ADMIN)) as link:
        link.post("messages", messages=[{"topic": name, "value": "eA=="} for _ in range(20)])
    return name


def settings(broker: BrokerProcess, credentials: Credentials, **more: Any) -> ReconcileSettings:
    producers = ("postgresql://localhost:1/never",)
    return ReconcileSettings(brokers=(broker.url,), producers=producers, credentials=credentials, **more)


@pytest.mark.parametrize("limited", [TOPICS, GROUPS, PRODUCER], ids=lambda one: str(one.table["name"]))
def test_reconcile_refuses_a_token_that_may_not_read_everything(
    guarded: BrokerProcess, shown: Shown, limited: Token
) -> None:
    with pytest.raises(Forbidden, match="permission `read` on every topic and every group") as refused:
        run_reconcile(NO_SPARK, settings(guarded, shown(limited)))
    assert limited.table["name"] in refused.value.detail


def test_reconcile_takes_a_token_that_may_read_everything(guarded: BrokerProcess, shown: Shown) -> None:
    for one in (READER, OPERATOR, ADMIN):
        require_permissions(settings(guarded, shown(one)))


def test_reconcile_of_some_topics_needs_these_and_every_group(guarded: BrokerProcess, shown: Shown) -> None:
    require_permissions(settings(guarded, shown(TOPICS), topics=("shop.a",)))
    consumer = Consumer(group="billing", database="sqlite:///never")
    with pytest.raises(Forbidden, match=r"topics shop\.a, dlq\.billing"):
        require_permissions(settings(guarded, shown(TOPICS), topics=("shop.a",), consumers=(consumer,)))
    with pytest.raises(Forbidden, match="groups: shop"):
        require_permissions(settings(guarded, shown(GROUPS), topics=("shop.a",)))


def test_without_access_control_nothing_is_hidden(broker: BrokerProcess) -> None:
    with Link(broker.url) as link:
        assert permissions_at(link) == Permissions()
    assert Permissions().hidden() == ""
    assert Permissions().sees_every_group_of("t")


def test_a_report_names_what_its_token_may_not_read(guarded: BrokerProcess, shown: Shown, topic: str) -> None:
    def hidden(one: Token, *topics: str) -> str:
        given = ReportSettings(url=guarded.url, topics=topics, credentials=shown(one))
        with _link(given) as link:
            return _reported(link, given)[0].hidden

    assert hidden(READER) == hidden(TOPICS, topic) == ""
    assert "'topics' may not read every topic and every group (it may read topics: shop.*; groups: *)" in hidden(TOPICS)
    assert "groups: shop" in hidden(GROUPS, topic)


def _link(given: ReportSettings) -> Any:
    from tallystick.spark.brokers import BrokersLink

    return BrokersLink(given.url, credentials=given.credentials)


@pytest.mark.parametrize(
    ("limited", "told"),
    [
        (READER, r"permission `operate` on this topic.*--keep"),
        (OPERATES_SOME, r"every consumer group.*--past-consumers"),
    ],
    ids=["reader", "some groups"],
)
def test_archive_refuses_before_it_writes_a_trim_that_it_may_not_do(
    guarded: BrokerProcess, shown: Shown, topic: str, tmp_path: Path, limited: Token, told: str
) -> None:
    path = tmp_path / "archive"
    with pytest.raises(Forbidden, match=told):
        run(guarded.url, path, topic, credentials=shown(limited))
    assert not path.exists()
    for allowed in ({"dry_run": True}, {"keep": True}):
        assert run(guarded.url, path, topic, credentials=shown(limited), **allowed).topics[0].rows == 20


def test_archive_trims_with_a_token_that_may(guarded: BrokerProcess, shown: Shown, topic: str, tmp_path: Path) -> None:
    done = run(guarded.url, tmp_path / "a", topic, credentials=shown(OPERATES_SOME), past_consumers=True)
    assert sum(done.topics[0].trimmed_to.values()) == 20


def test_archive_by_a_pattern_says_that_the_token_sees_some_topics_only(
    guarded: BrokerProcess, shown: Shown, topic: str, tmp_path: Path
) -> None:
    told: list[str] = []
    run(
        guarded.url,
        tmp_path / "a",
        topic,
        topics=(),
        pattern=topic.replace(".", r"\."),
        keep=True,
        credentials=shown(TOPICS),
        report=told.append,
    )
    assert any("'topics' does not see every topic" in text for text in told)


def test_a_check_back_sees_the_transactions_of_groups_that_the_token_covers(
    guarded: BrokerProcess, shown: Shown
) -> None:
    def sees(one: Token, *groups: str) -> bool:
        with Link(guarded.url, credentials=shown(one)) as link:
            return permissions_at(link).sees_transactions_of(groups)

    assert sees(OPERATOR)
    assert sees(OPERATES_SOME, "shop")
    assert not sees(OPERATES_SOME)
    assert not sees(OPERATES_SOME, "shop", "other")
