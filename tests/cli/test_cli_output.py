"""What holds for all commands: exit codes, JSON, no colours in pipes, and errors in one line on stderr."""

from __future__ import annotations

import http.server
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest
from command_line import Post, command, environment, one_line, tallystick

READING = [["topics"], ["groups"], ["tx", "list"], ["calls", "list"], ["calls", "hosts"], ["call-topics"]]


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def stranger() -> Iterator[str]:
    """A web server that is no broker."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "words", [*READING, ["tail", "t"], ["send", "t", "v", "--timeout", "500ms"], ["topics", "create", "t"]]
)
def test_an_unreachable_broker_is_code_4_and_says_what_to_do(nobody: str, words: list[str]) -> None:
    done = tallystick(*words, url=nobody)
    assert done.code == 4
    assert nobody.removeprefix("http://") in one_line(done.err)
    assert done.out == ""


def test_advice_for_an_unreachable_broker_names_serve_and_url(nobody: str) -> None:
    said = one_line(tallystick("topics", url=nobody).err)
    assert "tallystick serve" in said
    assert "--url" in said


def test_something_else_at_the_address_is_told_apart(stranger: str) -> None:
    done = tallystick("topics", url=stranger)
    assert (done.code, "does not answer like a Tallystick broker" in one_line(done.err)) == (4, True)


@pytest.mark.parametrize("address", ["ftp://host", "http://host:port", "http://", ""])
def test_a_wrong_address_is_wrong_usage(address: str) -> None:
    done = tallystick("--url", address, "topics") if address else tallystick("topics", TALLYSTICK_URL="http://:x")
    assert (done.code, "--url" in one_line(done.err)) == (2, True)


def test_the_address_comes_from_the_flag_then_from_the_environment(url: str, nobody: str) -> None:
    assert tallystick("topics", TALLYSTICK_URL=url).code == 0
    assert tallystick("topics", url=url, TALLYSTICK_URL=nobody).code == 0
    assert tallystick("topics", "--url", url, TALLYSTICK_URL=nobody).code == 0
    assert tallystick("topics", "list", "--url", url, url=nobody).code == 0


@pytest.mark.parametrize("words", READING)
def test_json_may_be_asked_for_before_or_after_the_command(url: str, words: list[str]) -> None:
    before, after = tallystick("--json", *words, url=url), tallystick(*words, "--json", url=url)
    assert before.json() == after.json()
    assert (before.err, after.err) == ("", "")


@pytest.mark.parametrize("words", READING)
def test_no_colours_without_a_terminal(url: str, post: Post, words: list[str]) -> None:
    post("/v1/transactions", gid=f"plain-{len(words)}", group="g", messages=[{"topic": "plain", "value": "x"}])
    post("/v1/messages", gid="called", messages=[], calls=[{"url": "http://127.0.0.1:9/nobody", "body": "x"}])
    tallystick("call-topics", "subscribe", "plain", "http://127.0.0.1:9/nobody", url=url)
    post("/v1/messages", messages=[{"topic": "plain", "value": "x"}])
    post("/v1/groups/plain/receive", topic="plain")
    done = tallystick(*words, url=url)
    assert done.out.count("\n") >= 2
    assert "\x1b" not in done.out + done.err


def test_a_long_line_is_not_cut_in_a_pipe(url: str) -> None:
    name = "n" * 120
    tallystick("topics", "create", name, url=url)
    assert [line for line in tallystick("topics", url=url).out.splitlines() if line.startswith(name)]


@pytest.mark.parametrize("place", [">/dev/full", ">&-"])
@pytest.mark.parametrize("words", [["topics"], ["--json", "topics"], ["--version"], ["tx", "list", "--json"]], ids=str)
def test_an_output_that_cannot_be_written_is_a_sentence_and_a_code(url: str, place: str, words: list[str]) -> None:
    tallystick("topics", "create", "shown", url=url)
    line = f'exec "$0" "$@" {place}'
    done = subprocess.run(
        ["/bin/sh", "-c", line, *command("--url", url, *words)], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 1
    assert one_line(done.stderr).startswith("tallystick: standard output cannot be written to: ")


def test_an_output_that_nobody_reads_any_more_is_no_trouble(url: str) -> None:
    line = '"$0" "$@" | true; exit 0'
    done = subprocess.run(
        ["/bin/sh", "-c", line, *command("--url", url, "--json", "topics")], capture_output=True, env=environment()
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_nothing_to_list_is_said_on_stderr(url: str) -> None:
    done = tallystick("tx", "list", "--group", "nobody", url=url)
    assert (done.code, done.out, one_line(done.err)) == (0, "", "tallystick: no such transactions\n")


# Of the exit codes 0, 1, ...
MEANINGS = ["done", "failed", "wrong usage", "not found", "unreachable", "conflict", "damage", "no damage"]


def test_help_names_every_command_and_the_exit_codes() -> None:
    shown = tallystick("--help").out
    commands = ["serve", "topics", "tx", "calls", "call-topics", "groups", "send", "tail", "bench"]
    commands += ["demo", "chaos", "doctor"]
    assert [name for name in commands if f"  {name} " not in shown] == []
    for code, meaning in enumerate(MEANINGS):
        assert f"{code} {meaning}" in " ".join(shown.split()).replace("broker unreachable", "unreachable")


@pytest.mark.parametrize(
    "command", ["serve", "topics", "tx", "calls", "call-topics", "groups", "send", "tail", "demo", "chaos", "doctor"]
)
def test_each_command_explains_itself(command: str) -> None:
    done = tallystick(command, "--help")
    assert (done.code, "Usage: tallystick" in done.out, done.err) == (0, True, "")


def test_a_command_that_does_not_exist_is_wrong_usage() -> None:
    assert tallystick("tpoics").code == 2


def test_version() -> None:
    assert tallystick("--version").out.strip().count(".") == 2
