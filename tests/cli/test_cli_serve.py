"""`tallystick serve`: settings from everywhere, clear errors, and a start and an end that scripts can rely on."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import command, environment, one_line, tallystick

from tallystick.broker.config import TABLES, Config
from tallystick.cli.flags import HELP


@contextlib.contextmanager
def serving(ready: Path, *flags: str, **variables: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A broker started by the command line; the URL is what it wrote into its ready file."""
    arguments = command("serve", "--store", "memory", "--port", "0", "--ready-file", str(ready), *flags)
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, env=environment(**variables))
    try:
        deadline = time.monotonic() + 30
        while not ready.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield ready.read_text().strip(), process
    finally:
        process.kill()
        process.communicate()


def info(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/v1/info", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def test_ready_file_appears_only_once_connections_are_accepted(tmp_path: Path) -> None:
    with serving(tmp_path / "ready") as (url, _):
        # No retry: the first connection after the file must succeed.
        assert info(url)["version"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_broker_and_ends_it_with_code_0(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "ready") as (_, process):
        process.send_signal(number)
        assert process.wait(20) == 0


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("max_message_bytes = 1001\nmax_request_bytes = 9001\nmax_topics = 11\ndrain_timeout = '2s'\n")
    variables = {"TALLYSTICK_MAX_MESSAGE_BYTES": "1002", "TALLYSTICK_MAX_REQUEST_BYTES": "9002"}
    with serving(tmp_path / "ready", "--config", str(file), "--max-message-bytes", "1003", **variables) as (url, _):
        limits = info(url)["limits"]
    assert (limits["message_bytes"], limits["request_bytes"], limits["topics"]) == (1003, 9002, 11)


def test_every_setting_has_a_flag_and_an_explanation() -> None:
    names = {field.name for field in msgspec.structs.fields(Config)}
    assert names == HELP.keys()
    shown = tallystick("serve", "--help").out
    missing = [name for name in names - set(TABLES) if f"--{name.replace('_', '-')} " not in shown]
    assert not missing


def test_switches_have_an_off_position(tmp_path: Path) -> None:
    with serving(tmp_path / "ready", "--no-auto-create-topics") as (url, _):
        done = tallystick("send", "nowhere", "x", url=url)
    assert (done.code, "nowhere" in one_line(done.err)) == (3, True)


@pytest.mark.parametrize(
    ("flags", "variables", "words"),
    [
        (["--port", "70000"], {}, ["port (flag)", "70000"]),
        (["--port", "many"], {}, ["port (flag)", "many"]),
        (["--check-after", "soon"], {}, ["check_after (flag)", "250ms"]),
        (["--store", "paper"], {}, ["store (flag)", "rocksdb, memory"]),
        (["--max-message-bytes", "99999999"], {}, ["max_message_bytes", "max_request_bytes"]),
        (["--databases", "bank"], {}, ["databases (flag)", "name=value"]),
        ([], {"TALLYSTICK_ON_EXHAUSTED": "cry"}, ["on_exhausted (environment)", "park, rollback"]),
        ([], {"TALLYSTICK_AUTO_CREATE_TOPICS": "maybe"}, ["auto_create_topics (environment)", "maybe"]),
        (["--config", "/nonexistent/x.toml"], {}, ["/nonexistent/x.toml", "No such file"]),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(
    flags: list[str], variables: dict[str, str], words: list[str]
) -> None:
    done = tallystick("serve", *flags, **variables)
    assert done.code == 2
    assert [word for word in words if word not in one_line(done.err)] == []
    assert done.out == ""


@pytest.mark.parametrize(
    ("text", "words"), [("prot = 1", ["prot", "did you mean port?"]), ("port = ", ["broker.toml"])]
)
def test_a_wrong_file_is_one_line_that_names_the_place(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    done = tallystick("serve", "--config", str(file))
    assert done.code == 2
    assert [word for word in words if word not in one_line(done.err)] == []


def test_an_unknown_flag_is_wrong_usage() -> None:
    assert tallystick("serve", "--prot", "1").code == 2


def test_a_taken_port_is_told_in_one_line_and_leaves_no_ready_file(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = tallystick("serve", "--store", "memory", "--port", port, "--ready-file", str(ready))
    assert done.code == 1
    assert f"127.0.0.1:{port}" in one_line(done.err)
    assert "choose another port (--port N)" in done.err
    assert not ready.exists()


def test_a_taken_port_for_grpc_is_told_with_the_flags_that_help() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = tallystick("serve", "--store", "memory", "--port", "0", "--grpc", "--grpc-port", port)
    assert done.code == 1
    assert "choose another port (--grpc-port N, or --no-grpc to do without)" in one_line(done.err)


def test_a_data_directory_in_use_is_told_in_one_line(tmp_path: Path) -> None:
    place = ("--store", "rocksdb", "--data-dir", str(tmp_path / "data"))
    with serving(tmp_path / "ready", *place) as (_, process):
        done = tallystick("serve", "--port", "0", *place)
        assert done.code == 1
        assert f"process {process.pid}" in one_line(done.err)


def test_a_data_directory_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = tallystick("serve", "--port", "0", "--data-dir", str(tmp_path / "file" / "data"))
    assert done.code == 1
    assert "Not a directory" in one_line(done.err)


def test_it_listens_on_ipv6_too(tmp_path: Path) -> None:
    with serving(tmp_path / "ready", "--host", "::1") as (url, _):
        assert url.startswith("http://[::1]:")
        assert info(url)["version"]
