"""The monkey on a cluster: brokers on one server, which take over from each other while they and it are struck."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos_support import DAMAGES, Left, chaos, command, failed, judged, judged_after, living

from eventually import eventually
from servers import postgres_server
from shared_stores import url_of
from tallystick.chaos.engines import check_store
from tallystick.core.errors import InvalidRequest
from tallystick.link import Link
from tallystick.local import LocalBroker

pytestmark = pytest.mark.fault

SHORT = ["--producers", "2", "--consumers", "2", "--brokers", "3", "--stores", "3", "--rounds", "3", "--rate", "20"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_server() as server:
        yield url_of(server, server.new_database())


@pytest.fixture(scope="module")
def left(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    """A run on a server that was there before; then one broker has all stores."""
    work = tmp_path_factory.mktemp("chaos-cluster")
    options = [*SHORT, "--seconds", "8", "--seed", "2", "--store", url]
    code, result = chaos(*options, "--directory", str(work / "kept"), "--keep")
    with LocalBroker(work / "broker", store=url) as broker, Link(broker.url) as link:

        def stores() -> list[dict[str, str]]:
            found: list[dict[str, str]] = link.get("cluster")["stores"]
            return found if all(store["url"].startswith(broker.url) for store in found) else []

        urls = [store["url"] for store in eventually(stores)]
        yield Left(work / "kept" / "check-back", result, code, urls)


@pytest.mark.full
def test_every_committed_message_is_consumed_exactly_once_whoever_takes_over(left: Left) -> None:
    (mode,) = left.result["modes"]
    assert (left.code, failed(mode)) == (0, set())
    assert mode["committed"] == mode["consumed"] > 0
    assert mode["takeovers"] > 0
    assert set(mode["struck"]) == {"producer", "broker", "consumer"}  # the server is somebody else's


@pytest.mark.full
@pytest.mark.parametrize("kind", DAMAGES)
def test_each_kind_of_damage_is_found_on_a_cluster_too(left: Left, tmp_path: Path, kind: str) -> None:
    assert judged_after(left, tmp_path, kind) == DAMAGES[kind][2]


@pytest.mark.full
def test_without_damage_nothing_is_found_on_a_cluster(left: Left) -> None:
    assert len(left.urls) == 3
    assert judged(left, left.directory) == set()


@pytest.mark.full
@pytest.mark.parametrize("engine", ["postgresql", "mysql", "redis"])
def test_a_server_of_the_runs_own_is_killed_as_well_and_gone_at_the_end(tmp_path: Path, engine: str) -> None:
    directory, before = tmp_path / "work", data_directories(engine)
    options = [*SHORT, "--seconds", "6", "--seed", "1", "--store", engine, "--directory", str(directory)]
    code, result = chaos(*options)
    (mode,) = result["modes"]
    assert (code, failed(mode)) == (0, set())
    assert mode["struck"]["engine"] == {"kill": 1}
    assert mode["takeovers"] > 0
    assert not directory.exists()
    assert data_directories(engine) <= before
    eventually(lambda: not living(tmp_path))


def data_directories(engine: str) -> set[Path]:
    """Of servers that are a run's own."""
    return set(Path(tempfile.gettempdir()).glob(f"tallystick-chaos-{engine}-*"))


@pytest.mark.parametrize("engine", ["mysql", "redis"])
def test_a_server_that_is_not_installed_is_told(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.chaos.own_servers.program", lambda name: "")
    with pytest.raises(InvalidRequest, match=rf"is not installed here \(.*\); name a server, {engine}://user@host"):
        check_store(engine)


def test_a_store_that_is_no_address_of_one_server_is_refused() -> None:
    for store in ("oracle", "postgresql://a:1,b:2/db", "oracle://host/db"):
        done = subprocess.run(command("--store", store), capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert "--store: " in done.stderr
        assert "postgresql://" in done.stderr


@pytest.mark.full
def test_a_cluster_that_is_there_is_left_alone(left: Left, url: str, tmp_path: Path) -> None:
    with Link(left.urls[0].partition("/stores/")[0]) as link:
        before = owners(link)
        done = subprocess.run(
            command("--store", url, "--directory", str(tmp_path / "work")), capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "there is a cluster already" in done.stderr
        assert "kept in" not in done.stderr
        assert not (tmp_path / "work").exists()
        assert owners(link) == before


def owners(link: Link) -> list[Any]:
    """Of the stores, with their epochs."""
    return [(one["id"], one["epoch"], one["owner"]) for one in link.get("cluster")["stores"]]
