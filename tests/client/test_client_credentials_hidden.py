"""A token is in no log, no repr, and in no variable that a traceback shows, whatever goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tallystick
from brokers import BrokerProcess
from client_certificates import TestAuthority, serving
from keeper import doorkeeper
from tallystick.client.base.settings import checked_settings
from tallystick.client.connection.wire import Wire, WireConnection
from tallystick.core.errors import TallystickError
from tallystick.core.tokens import new_token
from tallystick.credentials.credentials import Credentials, find_credentials
from tallystick.credentials.tokens import SecretToken
from tallystick.link import Link
from tallystick.local import free_port

TOKEN = "tally_recognisable_3141592653589793"
HERE = str(Path(__file__).parent)

Ask = Callable[[str], None]


def everything_shown(error: BaseException) -> str:
    """Of the error, of those that it came from, and of all frames but the test's own, with their variables."""
    seen: list[str] = []
    left: list[traceback.TracebackException | None] = [
        traceback.TracebackException.from_exception(error, capture_locals=True)
    ]
    while left:
        one = left.pop()
        if one is None:
            continue
        seen.append("".join(one.format_exception_only()))
        for frame in one.stack:
            if not frame.filename.startswith(HERE):
                seen.append(f"{frame.filename}:{frame.lineno} {frame.locals}")
        left += [one.__cause__, one.__context__]
    return "\n".join(seen)


def by_client(url: str) -> None:
    with tallystick.Client(url, timeout=1.0, token=TOKEN) as client:
        client.send("t", b"x")


def by_async_client(url: str) -> None:
    async def ask() -> None:
        async with tallystick.AsyncClient(url, timeout=1.0, token=TOKEN) as client:
            await client.topics()

    asyncio.run(ask())


def by_link(url: str) -> None:
    with Link(url, timeout=1.0, credentials=Credentials(SecretToken(TOKEN))) as link:
        link.post("topics", x="y" * 10_000_000)


WAYS = pytest.mark.parametrize("ask", [by_client, by_async_client, by_link])


@contextlib.contextmanager
def hangs_up() -> Iterator[str]:
    """Takes connections, and ends each in the middle of the first request."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with server.accept()[0] as taken:
                        taken.recv(10)
                        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def shown_after(ask: Ask, url: str, caplog: pytest.LogCaptureFixture) -> str:
    with caplog.at_level(logging.DEBUG), pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is
        ask(url)
    return everything_shown(raised.value) + caplog.text + repr(raised.value)


@WAYS
def test_nobody_listens(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    assert TOKEN not in shown_after(ask, f"http://127.0.0.1:{free_port()}", caplog)


@WAYS
def test_connections_break_in_the_middle(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    with hangs_up() as url:
        assert TOKEN not in shown_after(ask, url, caplog)


@WAYS
@pytest.mark.parametrize("status", [401, 403, 500])
@pytest.mark.parametrize("bare", [False, True])
def test_the_broker_refuses(ask: Ask, status: int, bare: bool, caplog: pytest.LogCaptureFixture) -> None:
    with doorkeeper() as keeper:
        keeper.judge = lambda path, body: status
        keeper.bare = bare
        assert TOKEN not in shown_after(ask, keeper.url, caplog)
        assert any(TOKEN in authorization for _, authorization in keeper.seen)


@WAYS
@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://", "https://name with space"])
def test_the_address_is_none(ask: Ask, url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert TOKEN not in shown_after(ask, url, caplog)


@WAYS
def test_tls_fails(ask: Ask, tmp_path: Path, broker: BrokerProcess, caplog: pytest.LogCaptureFixture) -> None:
    with doorkeeper(broker.url, TOKEN, serving(TestAuthority(tmp_path, "others").sign("broker"))) as keeper:
        assert TOKEN not in shown_after(ask, keeper.url, caplog)


@pytest.mark.parametrize("wrong", [{"timeout": -1}, {"group": "no group"}, {"token": f"{TOKEN}\n"}, {"ca": "/none"}])
@pytest.mark.parametrize("kind", [tallystick.Client, tallystick.AsyncClient])
def test_a_client_is_told_something_wrong(kind: type, wrong: dict[str, object]) -> None:
    with pytest.raises(tallystick.TallystickError) as raised:
        kind("http://127.0.0.1:1", **{"token": TOKEN, **wrong})
    assert TOKEN not in everything_shown(raised.value)


def test_reprs_show_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = find_credentials(SecretToken(TOKEN))
    assert TOKEN not in f"{given!r} {given} {SecretToken(TOKEN)!r} {SecretToken(TOKEN)}"
    assert TOKEN not in repr(checked_settings("http://127.0.0.1:1", credentials=given))
    file = tmp_path / "token"
    file.write_text(TOKEN)
    found = find_credentials(token_file=file)
    assert str(file) in repr(found)
    assert TOKEN not in repr(found)
    monkeypatch.setenv("TALLYSTICK_TOKEN", TOKEN)
    assert TOKEN not in repr(find_credentials())


def test_a_variable_with_the_token_in_it_would_be_seen() -> None:
    """The control: this is how a careless frame looks."""
    scope: dict[str, Callable[[str], None]] = {}
    exec(compile("def careless(token):\n    raise ValueError('no')", "elsewhere.py", "exec"), scope)
    with pytest.raises(ValueError, match="no") as raised:
        scope["careless"](TOKEN)
    assert TOKEN in everything_shown(raised.value)


@contextlib.contextmanager
def tls_pair(directory: Path) -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    ours = TestAuthority(directory, "ours")
    server_side = serving(ours.sign("broker"))
    plain, other = socket.socketpair()
    greeting: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: greeting.append(server_side.wrap_socket(other, server_side=True)))
    thread.start()
    with find_credentials(ca=ours.file).tls().wrap_socket(plain, server_hostname="127.0.0.1") as made:
        thread.join()
        with greeting[0] as there:
            there.settimeout(60)
            yield made, there


def interrupt(made: ssl.SSLSocket) -> None:
    WireConnection(made, Wire("https://127.0.0.1:1")._target).interrupt()


def abandon(made: ssl.SSLSocket) -> None:
    link = Link("https://127.0.0.1:1")
    link._connection.sock = made
    link.abandon()


@pytest.mark.parametrize("cut", [interrupt, abandon])
def test_what_is_sent_while_another_thread_hangs_up_is_encrypted(
    cut: Callable[[ssl.SSLSocket], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_pair(tmp_path) as (made, there):
        really = socket.socket.shutdown

        def in_between(self: socket.socket, how: int) -> None:
            made.send(TOKEN.encode())  # by the thread whose request is cut off
            really(self, how)

        monkeypatch.setattr(socket.socket, "shutdown", in_between)
        cut(made)
        monkeypatch.undo()
        assert there.recv(1_000) == TOKEN.encode()


def test_a_token_in_the_place_of_its_file_is_not_shown() -> None:
    text, _, _ = new_token()
    with pytest.raises(TallystickError, match="a token stands where the path of its file belongs") as refused:
        tallystick.Client("http://127.0.0.1:1", token_file=text)
    assert text not in "".join(traceback.format_exception(refused.value))
