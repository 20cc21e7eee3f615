"""`tallystick send` and `tallystick tail`."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from command_line import Post, command, environment, one_line, tallystick

from access_tokens import settings as known_tokens
from access_tokens import token
from brokers import running_broker
from client_certificates import TestAuthority, serving
from eventually import eventually_equal
from keeper import doorkeeper
from tallystick.cli.tail import TailReader
from tallystick.link import Link


def read(url: str, topic: str, *more: str) -> list[dict[str, Any]]:
    done = tallystick("tail", topic, "--no-follow", "--json", *more, url=url)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_what_is_sent_comes_out(url: str) -> None:
    words = ["--key", "k", "--header", "a=1", "--header", "b=x=y", "--tag", "T"]
    sent = tallystick("send", "whole", "hello", *words, "--json", url=url)
    assert sent.code == 0, sent.err
    (position,) = sent.json()["positions"]
    (message,) = read(url, "whole")
    assert (message["queue"], message["offset"]) == (position["queue"], position["offset"])
    assert (message["value"], message["key"], message["tag"]) == ("hello", "k", "T")
    assert message["headers"] == {"a": "1", "b": "x=y"}


def test_a_value_is_read_from_standard_input_as_it_is(url: str) -> None:
    content = bytes(range(256)) * 300
    assert tallystick("send", "raw", "-", stdin=content, url=url).code == 0
    (message,) = read(url, "raw")
    assert base64.b64decode(message["value_base64"]) == content


def test_a_gid_is_added_once(url: str) -> None:
    first = tallystick("send", "once", "x", "--gid", "only-1", "--json", url=url).json()
    again = tallystick("send", "once", "x", "--gid", "only-1", "--json", url=url).json()
    assert (first["gid"], first["duplicate"], again["duplicate"]) == ("only-1", False, True)
    assert len(read(url, "once")) == 1


@pytest.mark.parametrize("level", ["0", "1", "2"])
def test_every_level_arrives(url: str, level: str) -> None:
    assert tallystick("send", f"level-{level}", "x", "--level", level, url=url).code == 0
    assert [one["value"] for one in read(url, f"level-{level}")] == ["x"]


def test_level_0_names_a_refusal_that_no_later_attempt_cures(tmp_path: Path) -> None:
    """No token, a missing permission and an untrusted certificate. A broker that is away is no refusal."""
    sender = token("sender", "producer", topics=["mine.*"])
    file = tmp_path / "token"
    file.write_text(sender.text)
    shown, level = ("--token-file", str(file)), ("--level", "0")
    with running_broker(log_level="warning", **known_tokens(sender)) as broker:
        unknown = tallystick("send", "mine.a", "x", *level, url=broker.url)
        forbidden = tallystick("send", "other", "x", *level, *shown, url=broker.url)
        assert tallystick("send", "mine.a", "x", *level, *shown, url=broker.url).code == 0
        with doorkeeper(broker.url, tls=serving(TestAuthority(tmp_path, "others").sign("broker"))) as keeper:
            untrusted = tallystick("send", "mine.a", "x", *level, *shown, url=keeper.url)
    assert (unknown.code, "no token was shown" in one_line(unknown.err)) == (1, True)
    assert (forbidden.code, "permission `produce` on topic 'other'" in one_line(forbidden.err)) == (1, True)
    assert untrusted.code == 1
    assert "--ca-file" in untrusted.err
    away = tallystick("send", "mine.a", "x", *level, url="http://127.0.0.1:1")
    assert (away.code, "sent, not confirmed" in away.err) == (0, True)


def test_a_gid_needs_level_2(url: str) -> None:
    done = tallystick("send", "t", "x", "--level", "1", "--gid", "g", url=url)
    assert (done.code, "level 2" in one_line(done.err)) == (2, True)


def test_a_delayed_message_comes_later(url: str) -> None:
    tallystick("topics", "create", "later", url=url)
    began = time.monotonic()
    assert tallystick("send", "later", "tomorrow", "--delay", "24h", url=url).code == 0
    assert tallystick("send", "later", "soon", "--delay", "1500ms", url=url).code == 0
    eventually_equal(lambda: [one["value"] for one in read(url, "later")], ["soon"])
    assert time.monotonic() - began > 1.5


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--header", "novalue"], "--header"),
        (["--delay", "soon"], "--delay"),
        (["--gid", "bad gid"], "gid"),
        (["--key", "k" * 1025], "key"),
    ],
)
def test_wrong_options_are_wrong_usage(url: str, words: list[str], named: str) -> None:
    done = tallystick("send", "t", "x", *words, url=url)
    assert (done.code, named in one_line(done.err)) == (2, True)


def test_too_large_a_message_is_refused_with_its_limit(url: str) -> None:
    done = tallystick("send", "t", "-", stdin=b"x" * (5 * 1024 * 1024), url=url)
    assert (done.code, "4194304" in one_line(done.err)) == (2, True)


@contextlib.contextmanager
def following(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command("--url", url, "tail", *words, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        # As from a terminal, also if the tests themselves were started by a script, in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def next_value(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    assert line, f"it ended: {process.stderr.read()}"
    return json.loads(line)["value"]


def test_following_shows_what_comes_and_keeps_the_order_of_a_queue(url: str, post: Post) -> None:
    post("/v1/messages", messages=[{"topic": "follow", "value": "old", "key": "k"}])
    with following(url, "follow", "--from", "earliest") as process:
        assert next_value(process) == "old"
        for number in range(20):
            post("/v1/messages", messages=[{"topic": "follow", "value": str(number), "key": "k"}])
        assert [next_value(process) for _ in range(20)] == [str(number) for number in range(20)]


def test_latest_leaves_out_what_was_there(url: str, post: Post) -> None:
    post("/v1/messages", messages=[{"topic": "fresh", "value": "old"}])
    with following(url, "fresh", "--max", "1") as process, ThreadPoolExecutor(1) as pool:
        shown = pool.submit(next_value, process)
        while not shown.done():  # what comes before it has found its place is old, too
            post("/v1/messages", messages=[{"topic": "fresh", "value": "new"}])
            time.sleep(0.1)
        assert shown.result() == "new"
        assert process.wait(20) == 0


def test_following_outlives_a_restart_of_the_broker(tmp_path: Any) -> None:
    with running_broker(tmp_path) as broker:
        tallystick("send", "lasting", "before", url=broker.url)
        with following(broker.url, "lasting", "--from", "earliest") as process:
            assert next_value(process) == "before"
            broker.kill()
            time.sleep(0.5)
            broker.restart()
            tallystick("send", "lasting", "after", url=broker.url)
            assert next_value(process) == "after"


def test_control_c_ends_following_with_code_0(url: str, post: Post) -> None:
    post("/v1/messages", messages=[{"topic": "stop", "value": "x"}])
    with following(url, "stop", "--from", "earliest") as process:
        next_value(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_an_offset_and_a_queue_choose_what_is_shown(url: str, post: Post) -> None:
    tallystick("topics", "create", "chosen", "--queues", "1", url=url)
    for first in (0, 600):
        values = [{"topic": "chosen", "value": str(number)} for number in range(first, first + 600)]
        post("/v1/messages", messages=values)
    assert [one["value"] for one in read(url, "chosen", "--from", "1190")] == [str(n) for n in range(1190, 1200)]
    assert len(read(url, "chosen")) == 1_200
    assert [one["value"] for one in read(url, "chosen", "-n", "2")] == ["0", "1"]
    assert read(url, "chosen", "--from", "5000") == []
    missing = tallystick("tail", "chosen", "--no-follow", "--queue", "1", url=url)
    assert (missing.code, "queue 1" in one_line(missing.err)) == (3, True)


def test_a_line_for_people_holds_all_of_a_message(url: str) -> None:
    tallystick("send", "people", "[bold]hi", "--key", "k1", "--header", "h=v", "--tag", "T", url=url)
    (line,) = tallystick("tail", "people", "--no-follow", url=url).out.splitlines()
    assert line.endswith(":0 k1 #T h=v [bold]hi")


def test_an_unknown_topic_is_not_found(url: str) -> None:
    done = tallystick("tail", "unheard-of", url=url)
    assert (done.code, "unheard-of" in one_line(done.err)) == (3, True)


def test_a_wrong_start_is_wrong_usage(url: str) -> None:
    assert tallystick("tail", "t", "--from", "yesterday", url=url).code == 2


def test_following_goes_on_in_a_topic_that_was_made_again(
    url: str, post: Post, capsys: pytest.CaptureFixture[str]
) -> None:
    def send(*values: str) -> None:
        post("/v1/messages", messages=[{"topic": "remade", "key": "k", "value": value} for value in values])

    def make_again() -> None:
        assert tallystick("topics", "delete", "remade", "--yes", url=url).code == 0
        tallystick("topics", "create", "remade", "--queues", "1", url=url)

    tallystick("topics", "create", "remade", "--queues", "1", url=url)
    send("1", "2")
    with Link(url) as link:
        reader = TailReader(link, "remade", None, "earliest")
        assert [one["value"] for one in reader.read()] == ["1", "2"]
        make_again()
        send("3")
        assert [one["value"] for one in reader.read()] == ["3"]
        send("never seen")
        make_again()
        send("4")
        assert [one["value"] for one in [*reader.read(), *reader.read()]] == ["4"]
    assert "messages 3 to 3 are gone (the topic was deleted and made again)" in one_line(capsys.readouterr().err)
