"""TLS on the gRPC port: what the broker refuses, and what its clients do."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from brokers import BrokerProcess, running_broker
from certificates import Authority

EXPIRED_IN_USE = """
import tallystick.api.serving.tls as tls

tls._check_pair = lambda *_: 0.0  # as if it had been right when it was read
"""

HTTP1 = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 64


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


def settings(authority: Authority, *hosts: str, days: float = 7, **more: Any) -> dict[str, Any]:
    certificate, key = authority.issue("broker", *(hosts or ("127.0.0.1",)), days=days)
    return {"grpc": True, "tls_cert": certificate, "tls_key": key, "tls_ca": authority.path, **more}


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[BrokerProcess]:
    with running_broker(**settings(authority)) as running:
        yield running


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own look at whether a broker is ready takes any certificate."""
    taking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    taking.check_hostname, taking.verify_mode = False, ssl.CERT_NONE
    monkeypatch.setattr(BrokerProcess, "tls", property(lambda _: taking))


def outcome(broker: BrokerProcess, trusted: Authority) -> str:
    """Of a call by a client that trusts this CA."""
    credentials = grpc.ssl_channel_credentials(trusted.path.read_bytes())
    # Channels to one address share their connection unless they are told not to.
    with grpc.secure_channel(broker.grpc, credentials, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            channel.unary_unary("/dtmgimp.Dtm/NewGid")(b"", timeout=60)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"  # type: ignore[attr-defined]
    return "OK"


def encrypted(broker: BrokerProcess, context: ssl.SSLContext) -> str | None:
    """The version that a connection speaks."""
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", broker.grpc_port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as made,
    ):
        return made.version()


def test_clients_refuse_a_broker_of_a_ca_that_they_do_not_trust(
    broker: BrokerProcess, authority: Authority, stranger: Authority
) -> None:
    assert outcome(broker, stranger).startswith("UNAVAILABLE: ")
    assert outcome(broker, authority) == "OK"


@pytest.mark.usefixtures("unverified")
def test_clients_refuse_a_broker_of_another_name(authority: Authority) -> None:
    with running_broker(**settings(authority, "elsewhere.internal")) as broker:
        assert outcome(broker, authority).startswith("UNAVAILABLE: ")


@pytest.mark.usefixtures("unverified")
def test_clients_refuse_a_broker_whose_certificate_has_ended_since_it_was_read(authority: Authority) -> None:
    with running_broker(prelude=EXPIRED_IN_USE, **settings(authority, days=-1)) as broker:
        assert outcome(broker, authority).startswith("UNAVAILABLE: ")
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            encrypted(broker, authority.trusting())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.*deprecated")
def test_old_versions_are_refused(broker: BrokerProcess, authority: Authority, version: ssl.TLSVersion) -> None:
    old = authority.trusting()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = version
    with pytest.raises((ssl.SSLError, ConnectionError)):
        encrypted(broker, old)
    old.maximum_version = ssl.TLSVersion.TLSv1_2  # the control: the same client may speak a newer one
    assert encrypted(broker, old) == "TLSv1.2"


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 64]
)
def test_who_speaks_without_tls_is_cut_off(broker: BrokerProcess, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", broker.grpc_port), timeout=60) as plain:
        plain.sendall(said)
        assert everything(plain).find(b"HTTP/1.1 200") < 0


def test_who_does_not_begin_tls_is_cut_off(authority: Authority) -> None:
    with (
        running_broker(**settings(authority, handshake_timeout="500ms")) as broker,
        socket.create_connection(("127.0.0.1", broker.grpc_port), timeout=60) as silent,
    ):
        assert everything(silent) == b""


def everything(connection: socket.socket) -> bytes:
    """What the other side says until it ends the connection."""
    said = b""
    try:
        while piece := connection.recv(1_000):
            said += piece
    except ConnectionResetError:
        pass
    return said


def test_a_port_without_tls_is_not_taken_for_one_with(authority: Authority) -> None:
    with running_broker(grpc=True) as plain:
        assert outcome(plain, authority).startswith("UNAVAILABLE: ")
