"""Paths that mean the same to somebody else, below that of a store: every broker reads them as its owner does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from access_clusters import Guarded, guarded_cluster, shown
from path_tricks import tricks

from servers import Server
from shared_stores import url_of
from spoken_targets import status_of

pytestmark = pytest.mark.postgresql


class Place(NamedTuple):
    guarded: Guarded
    narrow: dict[str, str]

    def statuses(self, path: str, headers: dict[str, str], method: str = "GET") -> dict[str, tuple[int, int]]:
        """At the owner and elsewhere, of every spelling of the whole path, and of what comes after the store."""
        store = f"/stores/{self.guarded.store}"
        targets = [*tricks(store + path), *(f"{store}{spelled}" for spelled in tricks(path) if spelled[0] == "/")]
        targets += [f"/stores%2f{self.guarded.store}{path}", f"/stores%2F{self.guarded.store}%2Fx/y{path}"]
        brokers = (self.guarded.owner, self.guarded.other)
        return {
            target: (
                status_of(brokers[0].port, target, headers, method),
                status_of(brokers[1].port, target, headers, method),
            )
            for target in targets
        }


@pytest.fixture(scope="module")
def place(postgres: Server) -> Iterator[Place]:
    with guarded_cluster(url_of(postgres, postgres.new_database()), default_queues=1) as guarded:
        grants = {"topics": ["open.*"], "groups": ["open.*"]}
        asked = json.dumps({"name": "narrow", "roles": ["admin"], **grants}).encode()
        made = guarded.ask("admin", "POST", "/v1/tokens", asked).json()["token"]
        for topic in ("secret", "open.one"):
            body = json.dumps({"messages": [{"topic": topic, "value": 1}]}).encode()
            assert guarded.ask("admin", "POST", "/v1/messages", body).status == 201
        subscriber = b'{"url": "http://127.0.0.1:1/x"}'
        assert guarded.ask("admin", "PUT", "/v1/call-topics/secret/subscribers", subscriber).status == 200
        yield Place(guarded, {"Authorization": f"Bearer {made}"})
        for broker in guarded.cluster.brokers:
            assert "Traceback" not in broker.log_text()


LOOKS = ["/v1/info", "/v1/topics/secret/queues/0/messages", "/api/dtmsvr/all", "/api/dtmsvr/query?gid=x"]
CHANGES = [
    ("POST", "/v1/topics/secret/trim"),
    ("DELETE", "/v1/topics/secret"),
    ("DELETE", "/api/dtmsvr/topic/secret"),
    ("DELETE", "/api/dtmsvr/topic/open.one/../secret"),
    ("POST", "/.door/info"),
]


@pytest.mark.parametrize("path", LOOKS)
@pytest.mark.parametrize("who", ["", "narrow", "reader"])
def test_every_broker_reads_a_path_as_the_owner_does(place: Place, path: str, who: str) -> None:
    found = place.statuses(path, place.narrow if who == "narrow" else shown(who))
    assert {target: both for target, both in found.items() if both[0] != both[1]} == {}
    if not who:
        assert {one for both in found.values() for one in both} <= {400, 401}


def test_no_spelling_leads_to_another_topic(place: Place) -> None:
    found = place.statuses("/v1/topics/secret/queues/0/messages", place.narrow)
    assert {one for both in found.values() for one in both} <= {400, 403, 404}


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_no_spelling_changes_another_topic(place: Place, method: str, path: str) -> None:
    found = place.statuses(path, place.narrow, method)
    assert {target: both for target, both in found.items() if min(both) < 400} == {}
    for there in ("/v1/topics/secret", "/v1/call-topics/secret"):
        assert place.guarded.ask("admin", "GET", there).status == 200


def test_the_plain_path_and_the_absolute_form_are_for_those_who_may(place: Place) -> None:
    """A negative control: it is not the spelling alone that is refused above."""
    path = f"/stores/{place.guarded.store}/v1/topics/open.one/queues/0/messages"
    for broker in (place.guarded.owner, place.guarded.other):
        for target in (path, f"http://elsewhere.example{path}", path.replace("/stores", "/%73tores")):
            assert status_of(broker.port, target, place.narrow) == 200
