"""Servers that take the connection and answer nothing, or never to the end. Every wait for them has a limit."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import tallystick

from certificates import self_signed
from dribbling_server import dribbling_server
from tallystick.cli.links import AnyLink
from tallystick.core.errors import BrokerUnavailable
from tallystick.credentials.credentials import find_credentials
from tallystick.limited_http import StreamLimit, TooSlow
from tallystick.link import Link

LIMIT_SECONDS = 0.5
BOUND_SECONDS = 20.0
"""Far above the limit, for loaded machines. Without a limit, these servers answer for ever."""
TOO_LATE = "has not answered within 0.5 s"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.apache.arrow.stream\r\n"
DRIBBLES: dict[str, tuple[bytes, bytes]] = {
    "head": (b"", HEAD + b"X-A: a\r\n" * 1_000),
    "headers": (HEAD, b"X-A: a\r\n"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (HEAD + b"Content-Length: 1000000\r\n\r\n[", b" "),
    "body without a length": (HEAD + b"\r\n[", b" "),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "chunk size": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1", b";aaaaaaaa"),
    "trailers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-A: a\r\n"),
    "error": (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 1000000\r\n\r\n{", b" "),
}


def refusal(ask: Callable[[], object]) -> str:
    """What the caller is told, after a while that has a bound."""
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable) as refused:
        ask()
    assert time.monotonic() - began < BOUND_SECONDS
    return refused.value.detail


def test_a_broker_that_does_not_answer_in_time_is_not_said_to_be_absent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Link(url, timeout=0.2) as link:
            said = refusal(lambda: link.get("topics"))
    assert "has not answered within 0.2 s" in said
    assert "tallystick serve" not in said


@pytest.mark.parametrize("dribble", DRIBBLES)
def test_one_limit_holds_for_the_whole_request(dribble: str) -> None:
    with dribbling_server(*DRIBBLES[dribble]) as url, Link(url, timeout=LIMIT_SECONDS) as link:
        assert TOO_LATE in refusal(lambda: link.get("topics"))


def test_it_holds_over_tls_as_well(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path / "broker.pem", "127.0.0.1")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate)
    trusting = find_credentials(ca=certificate)
    with (
        dribbling_server(*DRIBBLES["body"], served) as url,
        Link(url, timeout=LIMIT_SECONDS, credentials=trusting) as link,
    ):
        assert TOO_LATE in refusal(lambda: link.get("topics"))


def test_it_holds_for_the_question_which_of_several_brokers_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.cli.links.LOOK_SECONDS", LIMIT_SECONDS)
    with dribbling_server(*DRIBBLES["headers"]) as url, AnyLink(f"{url},{url}/") as link:
        assert "no broker answers at any of" in refusal(lambda: link.get("topics"))


def test_it_holds_for_a_request_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.link.LEAST_BYTES_PER_SECOND", 64 * 1024 * 1024)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Link(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1) as link,
    ):
        said = refusal(lambda: link.post_arrow("parts", "part", body=bytes(32 * 1024 * 1024)))
    assert "has not answered" in said


@pytest.mark.parametrize("dribble", ["body", "chunks"])
def test_a_stream_has_a_least_rate(dribble: str) -> None:
    with dribbling_server(*DRIBBLES[dribble]) as url, Link(url, timeout=LIMIT_SECONDS) as link:
        said = refusal(lambda: read_to_the_end(link))
    assert "slower than 64 KiB/s" in said or TOO_LATE in said  # the second on a machine that is slow itself


def read_to_the_end(link: Link) -> None:
    with link.arrow("tables", "half") as answer:
        while answer.read(1):
            pass


def test_a_stream_that_keeps_the_least_rate_may_take_longer_than_the_limit_of_a_request() -> None:
    limit = StreamLimit(1.0)
    for _ in range(100):
        assert limit.left() == 1.0
        limit.moved(1024 * 1024, 0.9)
    limit.moved(0, 100 * 16.0)
    with pytest.raises(TooSlow):
        limit.left()


@pytest.mark.parametrize("command", [["topics", "list"], ["tail", "orders"], ["doctor", "--no-environment"]])
@pytest.mark.full
def test_every_command_ends(command: list[str]) -> None:
    with dribbling_server(*DRIBBLES["headers"]) as url:
        began = time.monotonic()
        assert tallystick(*command, url=url).code in (1, 4)
        assert time.monotonic() - began < 60
