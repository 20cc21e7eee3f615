"""What may come over a connection before it is a request: wishes for other protocols, heads without end, no HTTP."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers import BrokerProcess, running_broker
from eventually import eventually_equal
from raw_client import RawClient
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Prepare

H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
WEBSOCKET = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker() as running:
        yield running


def exchange(broker: BrokerProcess, *pieces: bytes) -> bytes:
    """What comes back when the pieces are sent one by one, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
        back = b""
        while more := connection.recv(65536):
            back += more
    return back


def request(method: str, path: str, wish: bytes, body: bytes, *more: bytes) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
    return head + wish + b"".join(more) + b"\r\n" + body


LAST = request("GET", "/readyz", b"Connection: close\r\n", b"")


@pytest.mark.parametrize("wish", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
@pytest.mark.parametrize("cut", [None, 40, -9], ids=["at once", "cut in the head", "cut in the body"])
def test_a_wish_for_another_protocol_is_ignored_and_the_body_is_read(
    broker: BrokerProcess, wish: bytes, cut: int | None
) -> None:
    name = f"wished-{len(wish)}-{cut}"
    sent = request("PUT", f"/v1/topics/{name}", wish, json.dumps({"queues": 7}).encode())
    pieces = [sent] if cut is None else [sent[:cut], sent[cut:]]
    back = exchange(broker, *pieces, LAST)
    assert back.count(b"HTTP/1.1 200 OK") == 2
    with RawClient(broker.url) as client:
        assert {topic.queues for topic in client.topics() if topic.name == name} == {7}


def test_a_wish_with_a_body_in_chunks_and_one_without_a_body(broker: BrokerProcess) -> None:
    chunked = b"PUT /v1/topics/wished-chunks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + H2C + b"\r\n"
    bare = b"GET /v1/topics HTTP/1.1\r\nHost: x\r\n" + H2C + b"\r\n"
    back = exchange(broker, chunked + b'6\r\n{"queu\r\n', b'7\r\nes": 5}\r\n0\r\n\r\n' + bare, LAST)
    assert back.count(b"HTTP/1.1 200 OK") == 3
    assert b'"name":"wished-chunks","queues":5' in back


def test_many_wishes_in_one_piece(broker: BrokerProcess) -> None:
    one = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    assert exchange(broker, one * 1_500, LAST).count(b"HTTP/1.1 200 OK") == 1_501


def test_a_wrong_body_behind_a_wish_is_refused_as_any_other(broker: BrokerProcess) -> None:
    back = exchange(broker, request("PUT", "/v1/topics/wished-wrong", H2C, b"not even json"), LAST)
    assert back.startswith(b"HTTP/1.1 400 ")
    with RawClient(broker.url) as client:
        assert "wished-wrong" not in {topic.name for topic in client.topics()}


def test_javas_own_client_with_its_default_settings_is_understood(broker: BrokerProcess, tmp_path: Path) -> None:
    java = shutil.which("java")
    assert java is not None, "`make test` installs a Java runtime"
    if not shutil.which("javac"):
        pytest.skip("a runtime without a compiler cannot run a program from its source; raw bytes are tried above")
    program = tmp_path / "Put.java"
    program.write_text(
        """
        import java.net.URI; import java.net.http.*;
        public class Put { public static void main(String[] given) throws Exception {
            var request = HttpRequest.newBuilder(URI.create(given[0]))
                .PUT(HttpRequest.BodyPublishers.ofString("{\\"queues\\": 6}")).build();
            System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());
        } }
        """
    )
    done = subprocess.run(
        [java, str(program), f"{broker.url}/v1/topics/of-java"], capture_output=True, text=True, timeout=120
    )
    assert '"queues":6' in done.stdout, done.stderr


@pytest.mark.parametrize("sent", [b"", b'{"delay_ms": 0'], ids=["no byte", "a part"])
def test_a_client_that_goes_away_before_its_body_has_asked_for_nothing(broker: BrokerProcess, sent: bytes) -> None:
    gid = f"cut-off-{len(sent)}"
    with RawClient(broker.url) as client:
        client.do(Prepare(gid, "g", [OutgoingMessage("cut-off", b"x")]))
        before = refused_commits(client)
        with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as connection:
            head = f"POST /v1/transactions/{gid}/commit HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
            connection.sendall(head.encode() + sent)
        eventually_equal(lambda: refused_commits(client), before + 1)
        assert client.json("GET", f"/v1/transactions/{gid}").json()["state"] == "prepared"


def refused_commits(client: RawClient) -> float:
    counted = 'tallystick_http_requests_total{route="/v1/transactions/{gid}/commit",status="400"} '
    lines = client.request("GET", "/metrics").body.decode().splitlines()
    return sum(float(line.removeprefix(counted)) for line in lines if line.startswith(counted))


ENDLESS = {
    "many headers": b"GET /readyz HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%06d: filler\r\n" % n for n in range(10_000)),
    "one long header": b"GET /readyz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 300_000,
    "a long address": b"GET /" + b"x" * 300_000,
    "trailers": b"POST /v1/batch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    + b"".join(b"X-%06d: filler\r\n" % n for n in range(10_000)),
    "what is said of a chunk": b"POST /v1/batch HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;x="
    + b"x" * 300_000,
    "all in one piece": b"GET /readyz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 70_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("head", ENDLESS.values(), ids=ENDLESS)
def test_a_head_or_trailers_without_end_are_refused_while_they_come(broker: BrokerProcess, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=60) as connection:
        back = b""
        try:
            connection.sendall(head)
            back = connection.recv(65536)
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass  # it has closed while we were sending: what it said may be lost with it
    assert back == b"" or (back.startswith(b"HTTP/1.1 413 ") and b"bytes of headers" in back)


def test_headers_within_the_limit_are_taken(broker: BrokerProcess) -> None:
    long = b"X-Long: " + b"x" * 60_000 + b"\r\n"
    assert exchange(broker, LAST[:-2] + long + b"\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"PUT /v1/topics/t HTTP/1.1\r\nContent-Length: no\r\n\r\n"],
    ids=["a TLS greeting", "no address", "no number"],
)
def test_what_is_no_http_is_told_as_a_problem(broker: BrokerProcess, garbage: bytes) -> None:
    head, _, body = exchange(broker, garbage).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == "invalid_request"
