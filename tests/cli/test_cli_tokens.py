"""`tallystick tokens` and `tallystick audit`."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from command_line import one_line, tallystick

from broker_clusters import running_cluster
from brokers import running_broker
from servers import Server
from shared_stores import url_of
from tallystick.core.tokens import digest_of, parse_token
from tallystick.store.rocksdb import open_rocksdb

FORM = re.compile(r"tally_[a-z0-9]{12}_[A-Za-z0-9_-]{43}\n\Z")


def listed(*where: str, url: str = "") -> dict[str, dict[str, Any]]:
    done = tallystick("tokens", "list", "--json", *where, url=url)
    assert done.code == 0, done.err
    return {one["name"]: one for one in done.json()["tokens"]}


# --- at a broker -------------------------------------------------------------------------------------------------


def test_a_token_is_printed_alone_and_what_it_may_is_told_beside_it(url: str) -> None:
    done = tallystick("tokens", "create", "alone", "--role", "producer", "--topic", "orders.*", url=url)
    assert (done.code, bool(FORM.match(done.out))) == (0, True), done
    assert "may check-back, produce on topic orders.*, all groups, all hosts" in done.err
    assert "this once" in done.err
    assert done.out.strip() not in done.err


def test_a_token_is_listed_with_all_that_was_said_and_without_its_secret(url: str) -> None:
    made = tallystick(
        *("tokens", "create", "whole", "--role", "producer", "--role", "call", "--topic", "a.*", "--topic", "b"),
        *("--group", "shop", "--host", "*.example:443", "--expires", "90d", "--max-in-flight", "7"),
        *("--bytes-per-second", "1000", "--json"),
        url=url,
    ).json()
    one = listed(url=url)["whole"]
    grant = {"roles": ["producer", "call"], "topics": ["a.*", "b"], "groups": ["shop"], "hosts": ["*.example:443"]}
    assert one["grants"] == made["grants"] == [grant]
    assert one["expires_at"] - one["created_at"] == 90 * 86_400_000
    assert one["limits"] == {"max_in_flight": 7, "bytes_per_second": 1000}
    assert one["id"] == made["id"] == made["token"].split("_")[1]
    shown = json.dumps(listed(url=url)) + tallystick("tokens", url=url).out
    secret = parse_token(made["token"])[1]  # type: ignore[index]
    assert secret not in shown
    assert digest_of(secret) not in shown


def test_a_revoked_token_is_gone_from_the_list_and_its_name_is_free(url: str) -> None:
    tallystick("tokens", "create", "short", "--role", "reader", url=url)
    assert tallystick("tokens", "revoke", "short", url=url).code == 0
    assert "short" not in listed(url=url)
    again = tallystick("tokens", "revoke", "short", url=url)
    assert (again.code, "short" in one_line(again.err)) == (3, True)
    assert tallystick("tokens", "create", "short", "--role", "reader", url=url).code == 0


def test_a_name_that_is_taken_is_a_conflict_and_changes_nothing(url: str) -> None:
    tallystick("tokens", "create", "taken", "--role", "reader", url=url)
    before = listed(url=url)["taken"]
    done = tallystick("tokens", "create", "taken", "--role", "admin", url=url)
    assert (done.code, "taken" in one_line(done.err), done.out) == (5, True, "")
    assert listed(url=url)["taken"] == before


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["a b", "--role", "reader"], "NAME"),
        (["../a", "--role", "reader"], "NAME"),
        (["x" * 64, "--role", "reader"], "NAME"),
        (["t\n", "--role", "reader"], "NAME"),
        (["t", "--role", "root"], "--role"),
        (["t", "--role", "reader", "--topic", "ok", "--topic", "a/b"], "--topic"),
        (["t", "--role", "reader", "--group", ""], "--group"),
        (["t", "--role", "reader", "--host", "http://a"], "--host"),
        (["t", "--role", "reader", "--expires", "soon"], "--expires"),
        (["t", "--role", "reader", "--expires", "0"], "--expires"),
        (["t", "--role", "reader", "--max-in-flight", "99999999"], "--max-in-flight"),
    ],
)
def test_what_is_no_name_or_pattern_is_refused_by_its_option(url: str, given: list[str], named: str) -> None:
    done = tallystick("tokens", "create", *given, url=url)
    assert (done.code, done.out) == (2, "")
    assert named in one_line(done.err)


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"name": "a/b", "roles": ["reader"]}, "name"),
        ({"name": "a\n", "roles": ["reader"]}, "name"),
        ({"roles": ["reader"]}, "name"),
        ({"name": "a"}, "roles"),
        ({"name": "a", "roles": ["root"]}, "roles[0]"),
        ({"name": "a", "roles": ["reader"], "topics": []}, "topics"),
        ({"name": "a", "roles": ["reader"], "topics": ["a", "a b"]}, "topics[1]"),
        ({"name": "a", "roles": ["reader"], "hosts": ["a/b"]}, "hosts[0]"),
        ({"name": "a", "roles": ["reader"], "grants": [{"roles": ["admin"]}]}, "grants"),
        ({"name": "a", "grants": [{"roles": []}]}, "grants[0].roles"),
        ({"name": "a", "roles": ["reader"], "expires_in_ms": -1}, "expires_in_ms"),
        ({"name": "a", "roles": ["reader"], "limits": {"max_in_flight": -1}}, "limits.max_in_flight"),
        ({"name": "a", "roles": ["reader"], "digest": "x"}, "digest"),
    ],
)
def test_the_broker_itself_refuses_them_too_and_names_the_field(url: str, sent: dict[str, Any], field: str) -> None:
    request = urllib.request.Request(f"{url}/v1/tokens", json.dumps(sent).encode(), method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    with refused.value as answer:
        problem = json.load(answer)
    assert (problem["status"], field in f"{problem.get('field')} {problem['detail']}") == (400, True), problem
    assert "a" not in listed(url=url)


def test_of_two_who_want_a_name_at_once_one_wins(url: str) -> None:
    for round_ in range(5):
        done: list[dict[str, Any]] = []
        threads = [threading.Thread(target=_ask, args=(url, f"race-{round_}", done)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = [one for one in done if "token" in one]
        assert [one["code"] for one in done if "token" not in one] == ["conflict"] * 3
        assert listed(url=url)[f"race-{round_}"]["id"] == winner["id"]


def _ask(url: str, name: str, done: list[dict[str, Any]]) -> None:
    body = json.dumps({"name": name, "roles": ["reader"]}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/tokens", body, method="POST"), timeout=10) as it:
            done.append(json.load(it))
    except urllib.error.HTTPError as error:
        with error:
            done.append(json.load(error))


def test_who_sends_without_a_token_is_told_once_what_to_do() -> None:
    with running_broker(auth="tokens") as broker:
        done = tallystick("send", "orders", "1", url=broker.url)
        assert (done.code, done.out) == (1, "")
        told = one_line(done.err)
    assert told.startswith("tallystick: no token was shown")
    assert (told.count("tokens create"), told.count("TALLYSTICK_TOKEN_FILE")) == (1, 1)
    assert "now and then" not in told


def test_admins_tokens_that_anybody_made_are_told_of_until_they_are_revoked(tmp_path: Path) -> None:
    kept = {"data_dir": str(tmp_path / "data"), "store": "rocksdb"}
    warned = "were made while access control was off"
    with running_broker(**kept) as broker:
        stranger = tallystick("tokens", "create", "stranger", "--role", "admin", url=broker.url).out.strip()
        tallystick("tokens", "create", "shop", "--role", "producer", url=broker.url)
        assert warned not in broker.log_text()
        assert "anybody" in tallystick("tokens", url=broker.url).out
    at_rest = ("--data-dir", kept["data_dir"])
    own = tallystick("tokens", "create", "ann", "--role", "admin", *at_rest).out.strip()
    with running_broker(auth="tokens", token=own, **kept) as broker:
        log = broker.log_text()
        assert (log.count(warned), "could make them: stranger. Revoke" in log) == (1, True)
        doctor = ("doctor", "--no-environment")
        shown = tallystick(*doctor, url=broker.url, TALLYSTICK_TOKEN=stranger).out
        assert "note  tokens: may do everything, and were made by anybody" in shown
        assert "stranger" in shown
        assert tallystick("tokens", "revoke", "stranger", url=broker.url, TALLYSTICK_TOKEN=own).code == 0
        assert "2 tokens, made by " in tallystick(*doctor, url=broker.url, TALLYSTICK_TOKEN=own).out
    with running_broker(auth="tokens", token=own, **kept) as broker:
        assert warned not in broker.log_text()


def test_a_broker_that_is_killed_has_every_token_that_it_answered_for(tmp_path: Path) -> None:
    with running_broker(data_dir=str(tmp_path / "data"), store="rocksdb") as broker:
        made: dict[str, str] = {}
        enough = threading.Event()
        thread = threading.Thread(target=_create_until_it_fails, args=(broker.url, made, enough))
        thread.start()
        assert enough.wait(30)
        broker.kill()
        thread.join()
        broker.restart()
        known = listed(url=broker.url)
        assert made.items() <= {name: one["id"] for name, one in known.items()}.items()
        assert len(known) - len(made) in (0, 1), "one more at most, whose answer was lost"
        for name in known:
            assert tallystick("tokens", "revoke", name, url=broker.url).code == 0
        assert listed(url=broker.url) == {}


def _create_until_it_fails(url: str, made: dict[str, str], enough: threading.Event) -> None:
    for number in range(100_000):
        body = json.dumps({"name": f"t{number}", "roles": ["reader"]}).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/tokens", body), timeout=10) as answer:
                made[f"t{number}"] = json.load(answer)["id"]
        except OSError:
            return
        if number == 5:
            enough.set()


# --- on the store itself -----------------------------------------------------------------------------------------


def test_the_first_token_is_made_in_the_directory_and_the_broker_knows_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = tallystick("tokens", "create", "admin", "--role", "admin", "--data-dir", str(data))
    assert (made.code, bool(FORM.match(made.out))) == (0, True), made
    token_id, secret = parse_token(made.out.strip())  # type: ignore[misc]
    with contextlib.closing(open_rocksdb(data)) as store:
        (record,) = store.tokens()
        assert (record.id, record.digest) == (token_id, digest_of(secret))
    with running_broker(data_dir=str(data), store="rocksdb") as broker:
        assert set(listed(url=broker.url)) == {"admin"}
        for words in (["create", "other", "--role", "reader"], ["list"], ["revoke", "admin"]):
            done = tallystick("tokens", *words, "--data-dir", str(data))
            assert (done.code, done.out) == (5, "")
            assert "--url" in one_line(done.err)
            assert "stop the broker first" in one_line(done.err)
        lines = tallystick("audit", "--json", url=broker.url).json()["lines"]
        told = {(one["action"], one["subject"], one["kind"]) for one in lines}
        assert ("create_token", "admin", "local") in told
    assert tallystick("tokens", "revoke", "admin", "--data-dir", str(data)).code == 0
    assert listed("--data-dir", str(data)) == {}


def test_two_places_at_once_are_wrong_usage(tmp_path: Path) -> None:
    done = tallystick("tokens", "list", "--data-dir", str(tmp_path), "--store", "postgresql://x/y")
    assert (done.code, "--store" in one_line(done.err)) == (2, True)


@pytest.mark.postgresql
def test_a_token_of_a_cluster_is_made_before_its_first_broker_and_then_at_one_of_them(
    postgres: Server,
) -> None:
    url = url_of(postgres, postgres.new_database())
    store = ("--store", url, "--stores", "3", "--allow-weak-durability")
    made = tallystick("tokens", "create", "admin", "--role", "admin", *store)
    assert (made.code, bool(FORM.match(made.out))) == (0, True), made
    assert "made the cluster, with 3 stores" in made.err
    assert "made the cluster" not in tallystick("tokens", "list", *store).err
    fewer = tallystick("tokens", "list", *store, "--stores", "2")
    assert "leave --stores out, or say 3" in one_line(fewer.err)
    assert "missing_on" not in listed(*store)["admin"]
    with running_cluster(url, brokers=2, stores=3) as cluster:
        for broker in cluster.brokers:
            assert set(listed(url=broker.url)) == {"admin"}
        done = tallystick("tokens", "create", "other", "--role", "reader", *store)
        assert (done.code, done.out) == (5, "")
        assert "--url http" in one_line(done.err)


# --- the audit log -----------------------------------------------------------------------------------------------


def test_what_was_done_is_shown_newest_first_by_who_and_what_and_when(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    for name in ("a", "b", "c"):
        tallystick("tokens", "create", name, "--role", "reader", "--data-dir", data)
    tallystick("tokens", "revoke", "b", "--data-dir", data)
    with running_broker(data_dir=data, store="rocksdb") as broker:
        url = broker.url

        def subjects(*options: str) -> list[str]:
            return [one["subject"] for one in tallystick("audit", "--json", *options, url=url).json()["lines"]]

        assert subjects() == ["b", "c", "b", "a"]
        assert subjects("--action", "create_token") == ["c", "b", "a"]
        assert subjects("--limit", "2") == ["b", "c"]
        assert subjects("--since", "1h") == ["b", "c", "b", "a"]
        assert subjects("--since", "2099-01-01T00:00") == []
        assert subjects("--who", "nobody at all") == []
        shown = tallystick("audit", "--limit", "1", url=url)
        assert "revoke_token" in shown.out
        assert "there is more" in one_line(shown.err)
        wrong = tallystick("audit", "--since", "yesterday", url=url)
        assert (wrong.code, "--since" in one_line(wrong.err)) == (2, True)
        unheard = tallystick("audit", "--action", "nonsense", url=url)
        assert unheard.code == 2
        assert "there is no 'nonsense'" in one_line(unheard.err)
        assert "create_token" in one_line(unheard.err)
