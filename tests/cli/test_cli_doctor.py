"""`tallystick doctor`: silent about what is well, clear about what is not."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, Post, tallystick

from brokers import running_broker
from hanging_server import hanging_server
from tallystick.cli.doctor.environment import wanted_packages
from tallystick.core.tokens import new_token
from tallystick.local import free_port

BROKER_ONLY = "--no-environment"


def findings(done: Done) -> dict[str, dict[str, str]]:
    return {one["subject"]: one for one in done.json()["findings"]}


def problems(done: Done) -> set[str]:
    return {one["subject"] for one in done.json()["findings"] if one["status"] == "problem"}


def test_a_healthy_machine_and_broker(url: str, tmp_path: Path) -> None:
    done = tallystick("doctor", "--data-dir", str(tmp_path), "--json", url=url)
    assert done.code == 0, done.out
    subjects = {"python", "packages", "disk", "space", "PostgreSQL server", "MariaDB server", "Redis server"}
    subjects |= {"extra spark", "Java", "JDBC drivers", "Spark format"}
    subjects |= {"broker", "version", "ready", "clock", "pending", "parked", "consumers", "calls", "called services"}
    assert subjects <= findings(done).keys()
    assert done.json()["ok"] is True


def test_what_a_token_may_not_look_at_is_no_problem(tmp_path: Path) -> None:
    token, token_id, digest = new_token()
    known = {"name": "shop", "id": token_id, "token_sha256": digest, "roles": ["producer"], "topics": ["orders.*"]}
    (tmp_path / "token").write_text(token)
    with running_broker(auth="tokens", static_tokens=[known], token=token) as broker:
        done = tallystick("doctor", BROKER_ONLY, "--json", "--token-file", str(tmp_path / "token"), url=broker.url)
    assert done.code == 0, done.out
    notes = [one["text"] for one in findings(done).values() if one["status"] == "note"]
    assert any("not looked at: shop needs the permission" in text for text in notes), done.out


def test_people_get_a_line_for_each_and_a_verdict(url: str, tmp_path: Path) -> None:
    shown = tallystick("doctor", "--data-dir", str(tmp_path), url=url).out
    assert "ok  broker" in shown
    assert shown.endswith("nothing is wrong\n")


def test_a_broker_that_hangs_and_one_that_is_away_are_told_apart() -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with hanging_server() as hanging:
        found = {url: tallystick("doctor", BROKER_ONLY, "--json", url=url) for url in (hanging.url, away)}
        both = tallystick("doctor", BROKER_ONLY, "--json", url=f"{hanging.url},{away}")
    no_name = tallystick("doctor", BROKER_ONLY, "--json", url="http://no-such-broker.invalid:7440")
    assert "(it hangs)" in findings(found[hanging.url])["broker"]["text"]
    assert "refuses connections" in findings(found[away])["broker"]["text"]
    assert "its name is not found" in findings(no_name)["broker"]["text"]
    texts = [one["text"] for one in both.json()["findings"] if one["status"] == "problem"]
    assert len(texts) == 2
    assert hanging.url in texts[0]
    assert away in texts[1]
    assert all(done.code == 1 for done in (*found.values(), both, no_name))


def test_the_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    tallystick("doctor", "--data-dir", str(tmp_path / "not" / "yet"), "--no-broker")
    assert list(tmp_path.iterdir()) == []


def test_no_broker_at_the_default_address_is_no_problem_but_a_named_one_is(tmp_path: Path) -> None:
    named = tallystick("doctor", BROKER_ONLY, "--json", url="http://127.0.0.1:9")
    assert (named.code, problems(named)) == (1, {"broker"})
    assert "127.0.0.1:9" in findings(named)["broker"]["text"]


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    done = tallystick("doctor", "--data-dir", "/proc/none", "--no-broker", "--json")
    assert (done.code, problems(done)) == (1, {"disk"})
    assert "--data-dir" in findings(done)["disk"]["advice"]


def test_parked_old_and_unread_are_problems(url: str, post: Post) -> None:
    check = {"via": "url", "target": "http://127.0.0.1:9/", "after_ms": 0, "max_checks": 1}
    post("/v1/transactions", gid="stuck", group="g", messages=[{"topic": "slow", "value": "x"}], check=check)
    post("/v1/transactions", gid="open", group="g", messages=[{"topic": "slow", "value": "x"}])
    post("/v1/messages", messages=[{"topic": "slow", "value": "x"} for _ in range(20)])
    post("/v1/groups/sleepy/receive", topic="slow", max=1)
    deadline = time.monotonic() + 20
    while tallystick("tx", "show", "stuck", "--json", url=url).json()["state"] != "parked":
        assert time.monotonic() < deadline
    time.sleep(1.1)
    done = tallystick("doctor", BROKER_ONLY, "--max-lag", "10", "--max-pending", "0", "--json", url=url)
    assert (done.code, problems(done)) == (1, {"parked", "pending", "consumers"})
    assert "sleepy on slow (20)" in findings(done)["consumers"]["text"]
    assert "tx list --state parked" in findings(done)["parked"]["advice"]
    # The same broker is well by more patient standards, but for what is parked.
    patient = tallystick("doctor", BROKER_ONLY, "--json", url=url)
    assert problems(patient) == {"parked"}


@contextmanager
def impostor(clock_ahead: float = 0.0, **changed: Any) -> Iterator[str]:
    """Answers as a broker in trouble would, by a clock that is so many seconds ahead."""
    info = {
        "store": "s",
        "version": "0.0.1",
        "oldest_pending_at": None,
        "dedup_retention_ms": 86_400_000,
        "limits": {},
    }
    answers: dict[str, tuple[int, Any]] = {
        "/v1/info": (200, info | {key: value for key, value in changed.items() if key != "ready"}),
        "/readyz": changed.get("ready", (200, {"status": "ready"})),
        "/v1/transactions": (200, {"transactions": [], "next": None}),
        "/v1/groups": (200, {"groups": []}),
        "/v1/cluster": (200, {"stores": [], "brokers": []}),
        "/v1/call-hosts": (200, {"hosts": []}),
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            unknown = 404, {"code": "not_found", "detail": "there is no such address"}
            status, content = answers.get(self.path.partition("?")[0], unknown)
            body = json.dumps({"now_ms": round((time.time() + clock_ahead) * 1000), **content}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        ((503, {"reason": "fsync failed: No space left"}), ["fsync failed", "disk"]),
        ((503, {"reason": "draining"}), ["on its way out", "start it again"]),
    ],
)
def test_a_broker_that_takes_no_work(ready: tuple[int, Any], words: list[str]) -> None:
    with impostor(ready=ready) as url:
        done = tallystick("doctor", BROKER_ONLY, "--json", url=url)
    assert (done.code, problems(done)) == (1, {"ready"})
    said = " ".join(findings(done)["ready"].values())
    assert [word for word in words if word not in said] == []


@pytest.mark.parametrize(("seconds", "status"), [(-3600, "problem"), (3600, "problem"), (-5, "note"), (0, "ok")])
def test_a_clock_that_differs(seconds: int, status: str) -> None:
    with impostor(clock_ahead=seconds) as url:
        done = tallystick("doctor", BROKER_ONLY, "--json", url=url)
    assert findings(done)["clock"]["status"] == status
    assert done.code == (1 if status == "problem" else 0)


def test_a_grpc_port_that_cannot_be_reached(url: str) -> None:
    listening = int(url.rpartition(":")[2])
    for port, status in ((9, "problem"), (listening, "ok")):
        with impostor(grpc_port=port) as other:
            done = tallystick("doctor", BROKER_ONLY, "--json", url=other)
        assert findings(done)["gRPC"]["status"] == status
        assert done.code == (1 if status == "problem" else 0)


def test_another_version_is_worth_a_note() -> None:
    with impostor() as url:
        done = tallystick("doctor", BROKER_ONLY, "--json", url=url)
    assert (done.code, findings(done)["version"]["status"]) == (0, "note")


def test_the_packages_it_looks_for_are_those_of_the_project() -> None:
    assert {name for name, _ in wanted_packages("")} == {"httptools", "msgspec"}
    assert {"rocksdict", "uvicorn"} <= {name for name, _ in wanted_packages("server")}
    assert [name for name, _ in wanted_packages("mysql")] == ["pymysql"]
    assert dict(wanted_packages("cli"))["rich"] == "13.7"
