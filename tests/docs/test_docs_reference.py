"""The reference is complete: what is made from the code is what the pages say."""

from __future__ import annotations

import http.client
import re
from importlib import import_module

import pytest
from doc_generated import PIECES, made, places
from doc_pages import ROOT

from broker_clusters import running_cluster
from brokers import BrokerProcess
from eventually import eventually_equal
from servers import Server
from shared_stores import url_of
from tallystick import errors
from tallystick.core import errors as core_errors

OF_CLUSTERS = ("tallystick_cluster_", "tallystick_store_round_trips")


@pytest.mark.parametrize(("page", "name", "text"), [pytest.param(*one, id=one[1]) for one in places()])
def test_what_the_code_says_is_what_the_page_says(page: str, name: str, text: str) -> None:
    assert text == made(name), f"{page} is stale: run `.venv/bin/python tests/docs/doc_generated.py`"


def test_every_piece_has_its_place() -> None:
    assert sorted(name for _, name, _ in places()) == sorted(PIECES)


def test_every_error_of_the_rules_can_be_imported_from_its_public_home() -> None:
    defined = {
        name for name, kind in vars(core_errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert set(errors.__all__) == defined
    assert {name for name in defined if getattr(errors, name) is not getattr(core_errors, name)} == set()


def test_every_error_is_where_the_page_says() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| `(tallystick[\w.]*)` \|", page, re.MULTILINE)
    assert len(told) > 30
    assert [name for name, home in told if not hasattr(import_module(home), name)] == []


def test_a_stale_page_is_noticed() -> None:
    """The negative control: a setting that is missing from a table makes the comparison fail."""
    stale = "\n".join(line for line in made("configuration").splitlines() if "`check_after`" not in line)
    assert stale != made("configuration")


def test_the_metrics_page_has_every_metric_of_a_running_broker(broker: BrokerProcess) -> None:
    assert served_metrics(broker) == {name for name in told_metrics() if not name.startswith(OF_CLUSTERS)}


@pytest.mark.postgresql
def test_the_metrics_page_has_every_metric_of_a_broker_of_a_cluster(postgres: Server) -> None:
    with running_cluster(url_of(postgres, postgres.new_database()), brokers=1, stores=1) as cluster:
        # Those of a store are told as soon as it is open.
        eventually_equal(lambda: served_metrics(cluster.brokers[0]), told_metrics())


def served_metrics(broker: BrokerProcess) -> set[str]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    served = set(re.findall(r"^# TYPE (\w+) (?:counter|gauge|histogram)$", text, re.MULTILINE))
    return {name for name in served if not name.endswith("_created")}


def told_metrics() -> set[str]:
    """But for those of TLS, which these brokers do not speak."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    told = set(re.findall(r"^\| `(tallystick_\w+)` \|", page, re.MULTILINE))
    return {name for name in told if not name.startswith("tallystick_tls_")}
