"""Brokers of a cluster that reach each other over TLS, and know each other by their certificates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from access_tokens import OWN
from access_tokens import settings as known_tokens
from broker_clusters import BrokerCluster, running_cluster
from brokers import BrokerProcess, running_broker
from certificates import Authority
from eventually import eventually
from raw_client import RawClient
from servers import Server
from shared_stores import url_of
from tallystick.api.cluster.service import _advertised
from tallystick.broker.config import Config
from tallystick.core.errors import ConfigError

pytestmark = pytest.mark.postgresql


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings(authority: Authority, *hosts: str, **more: Any) -> dict[str, Any]:
    certificate, key = authority.issue("broker", *(hosts or ("127.0.0.1",)))
    return {"tls_cert": certificate, "tls_key": key, "tls_ca": authority.path, "lease": "20s", **more}


@contextmanager
def two_of(postgres: Server, **given: Any) -> Iterator[tuple[str, BrokerProcess, BrokerProcess, BrokerCluster]]:
    """The only store, its owner, a broker that owns nothing, and both."""
    with running_cluster(url_of(postgres, postgres.new_database()), brokers=2, stores=1, **given) as cluster:
        ((store, url),) = cluster.owners().items()
        owner = next(broker for broker in cluster.brokers if broker.url == url)
        (other,) = (broker for broker in cluster.brokers if broker is not owner)
        yield store, owner, other, cluster


def test_requests_are_handed_on_over_tls_with_a_certificate_on_both_sides(
    postgres: Server, authority: Authority
) -> None:
    mutual = settings(authority, tls_client_ca=authority.path, tls_client_required=True)
    with two_of(postgres, **mutual) as (store, owner, other, cluster):
        assert all(broker["url"].startswith("https://127.0.0.1:") for broker in cluster.view()["brokers"])
        with RawClient(other.url, tls=other.tls) as client, RawClient(owner.url, tls=owner.tls) as direct:
            sent = {"messages": [{"topic": "t", "value": "over TLS"}]}
            for path in ("/v1/messages", f"/stores/{store}/v1/messages"):
                assert client.json("POST", path, sent).status == 201
            assert [one.value for one in direct.messages("t")] == [b"over TLS"] * 2
            told = direct.request("GET", "/metrics").body.decode()
            for metric in ("tallystick_connections ", "tallystick_tls_expires_seconds "):
                assert told.count(f"\n{metric}") == 1  # of the process, not of each store
            # The certificates are exchanged: whoever hands on shows the new one.
            authority.issue("broker", "127.0.0.1")
            eventually(lambda: "were exchanged" in other.log_text() and "were exchanged" in owner.log_text())
            assert client.json("POST", f"/stores/{store}/v1/messages", sent).status == 201


def test_the_name_in_a_certificate_counts_at_every_broker(postgres: Server, authority: Authority) -> None:
    grants = [
        {"name": "CN=web", "roles": ["producer"], "topics": ["orders"]},
        {"name": "CN=ops", "roles": ["admin"]},
    ]
    given = settings(authority, tls_client_ca=authority.path, certificates=grants, **known_tokens())
    web, ops = (authority.trusting(*authority.issue(name)) for name in ("web", "ops"))
    with two_of(postgres, token=OWN["reader"].text, **given) as (store, owner, other, _):
        for broker in (owner, other):
            for prefix in ("", f"/stores/{store}"):
                with RawClient(broker.url, tls=web) as client:
                    told = client.request("GET", f"{prefix}/v1/whoami").json()
                    assert (told["name"], told["kind"]) == ("CN=web", "certificate")
                    sent = [{"messages": [{"topic": topic, "value": "x"}]} for topic in ("orders", "stock")]
                    assert [client.json("POST", f"{prefix}/v1/messages", one).status for one in sent] == [201, 403]
                # The certificate of the broker that hands on is nobody's, and opens nothing.
                for nobody in (authority.trusting(), other.tls):
                    with RawClient(broker.url, tls=nobody) as client:
                        assert client.request("GET", f"{prefix}/v1/whoami").status == 401
        with RawClient(other.url, tls=ops) as client:
            assert client.json("PUT", f"/stores/{store}/v1/topics/made", {"queues": 1}).status == 200
            assert client.request("DELETE", f"/stores/{store}/v1/topics/made").status == 204
            (line,) = client.request("GET", f"/stores/{store}/v1/audit?action=delete_topic").json()["lines"]
            assert (line["who"], line["kind"], line["source"]) == ("CN=ops", "certificate", "127.0.0.1")


def test_a_broker_whose_certificate_has_another_name_is_not_spoken_to(postgres: Server, authority: Authority) -> None:
    wrong = settings(authority, "elsewhere.internal")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BrokerProcess, "tls", property(lambda _: authority.trusting(hostname=False)))
        with two_of(postgres, **wrong) as (store, _, other, _), RawClient(other.url, tls=other.tls) as client:
            answer = client.json("POST", f"/stores/{store}/v1/messages", {"messages": [{"topic": "t", "value": "x"}]})
            assert answer.status == 503
            assert "no TLS with the owner of this store" in answer.problem().detail
            assert "not valid for '127.0.0.1'" in answer.problem().detail


def test_brokers_with_and_without_tls_go_together_while_it_is_switched_on(
    postgres: Server, authority: Authority
) -> None:
    place = {"store": url_of(postgres, postgres.new_database()), "stores": 1, "allow_weak_durability": True}
    with (
        running_broker(**place, **settings(authority)) as new,
        running_broker(**place, tls_ca=authority.path, lease="20s") as old,
        RawClient(old.url) as client,
    ):
        cluster = BrokerCluster([new, old], 1)
        eventually(lambda: cluster.owners(), "an owner")
        (store,) = cluster.owners()
        sent = {"messages": [{"topic": "t", "value": "x"}]}
        assert client.json("POST", f"/stores/{store}/v1/messages", sent).status == 201
        with RawClient(new.url, tls=new.tls) as direct:
            assert direct.json("POST", f"/stores/{store}/v1/messages", sent).status == 201
            assert len(direct.messages("t")) == 2


@pytest.mark.parametrize(
    ("advertise", "spoken", "found"),
    [
        ("", "https", "https://127.0.0.1:7440"),
        ("b1.internal:7440", "https", "https://b1.internal:7440"),
        ("b1.internal:7440", "http", "http://b1.internal:7440"),
        ("https://b1.internal", "https", "https://b1.internal"),
    ],
)
def test_what_is_advertised_follows_what_is_spoken(advertise: str, spoken: str, found: str) -> None:
    assert _advertised(Config(advertise=advertise), f"{spoken}://127.0.0.1:7440") == found


@pytest.mark.parametrize(
    ("advertise", "spoken", "words"),
    [
        ("http://b1.internal", "https", "speaks https"),
        ("https://b1.internal", "http", "needs tls_cert and tls_key"),
        ("https://u:p@b1.internal", "https", "without a name and password"),
    ],
)
def test_what_cannot_be_advertised_is_told(advertise: str, spoken: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _advertised(Config(advertise=advertise), f"{spoken}://127.0.0.1:7440")
