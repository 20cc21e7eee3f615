"""TLS on the HTTP port: who is trusted, who is taken, what is refused."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from brokers import BrokerProcess, running_broker
from certificates import Authority
from eventually import eventually
from raw_client import RawClient
from tallystick.api.serving.tls import Tls
from tallystick.broker.config import Config, load_config
from tallystick.core.errors import ConfigError

# What a connection shows of its client, told as an answer.
ECHO = """
import json
import tallystick.api.app as app
from tallystick.api.serving.asgi import answer_raw

inner = app.App.__call__


async def telling(self, scope, receive, send):
    if scope["type"] == "http" and scope["path"] == "/echo":
        told = {name: scope[name] for name in ("tls_names", "client", "scheme")}
        await answer_raw(send, 200, "application/json", json.dumps(told).encode())
    else:
        await inner(self, scope, receive, send)


app.App.__call__ = telling
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


def settings(authority: Authority, **more: Any) -> dict[str, Any]:
    certificate, key = authority.issue("broker", "127.0.0.1", "broker.internal")
    return {"tls_cert": certificate, "tls_key": key, "tls_ca": authority.path, **more}


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[BrokerProcess]:
    """One that asks for certificates, and takes clients without them."""
    with running_broker(**settings(authority, tls_client_ca=authority.path), prelude=ECHO) as running:
        yield running


@contextmanager
def encrypted(broker: BrokerProcess, context: ssl.SSLContext, name: str = "127.0.0.1") -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", broker.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=name) as made,
    ):
        yield made


def refusal_of(broker: BrokerProcess, context: ssl.SSLContext, name: str = "127.0.0.1") -> str:
    """With TLS 1.3 a client learns only after its handshake that its certificate was not taken."""
    try:
        with encrypted(broker, context, name) as made:
            made.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert made.recv(1) == b"", "it was answered"
    except (ssl.SSLError, ConnectionError) as error:
        return str(error)
    return "closed"


def assert_refused(broker: BrokerProcess, context: ssl.SSLContext, reason: str) -> None:
    """By the broker, whose log says why."""
    assert refusal_of(broker, context)
    eventually(lambda: f"TLS did not begin ({reason})" in broker.log_text(), f"{reason} in the log")


def echo(broker: BrokerProcess, tls: ssl.SSLContext) -> Any:
    with RawClient(broker.url, tls=tls) as client:
        return json.loads(client.request("GET", "/echo").body)


# --- the server's certificate ------------------------------------------------------------------------------------


def test_requests_are_answered_over_tls_and_the_log_says_so(broker: BrokerProcess, authority: Authority) -> None:
    with RawClient(broker.url, tls=authority.trusting()) as client:
        sent = {"messages": [{"topic": "secret", "value": "1"}]}
        assert client.json("POST", "/v1/messages", sent).status == 201
        assert [one.value for one in client.messages("secret")] == [b"1"]
    assert f"listening on https://127.0.0.1:{broker.port}" in broker.log_text()


def test_another_ca_and_another_name_are_the_clients_to_refuse(
    broker: BrokerProcess, authority: Authority, stranger: Authority
) -> None:
    assert "CERTIFICATE_VERIFY_FAILED" in refusal_of(broker, stranger.trusting())
    assert "Hostname mismatch" in refusal_of(broker, authority.trusting(), "other.internal")
    with encrypted(broker, authority.trusting(), "broker.internal") as made:
        assert made.version() == "TLSv1.3"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.*deprecated")
def test_old_versions_are_refused(broker: BrokerProcess, authority: Authority, version: ssl.TLSVersion) -> None:
    old = authority.trusting()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = version
    assert_refused(broker, old, "UNSUPPORTED_PROTOCOL")
    old.maximum_version = ssl.TLSVersion.TLSv1_2  # the control: the same client may speak a newer one
    with encrypted(broker, old) as made:
        assert made.version() == "TLSv1.2"


def test_plain_http_to_a_port_with_tls_is_told_so_and_ends_at_once(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        said = plain.makefile("rb").read()
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"this port speaks TLS" in said


def test_a_client_that_does_not_begin_tls_is_cut_off(authority: Authority) -> None:
    with running_broker(**settings(authority, handshake_timeout="500ms")) as broker:
        with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as silent:
            assert silent.recv(1) == b""
        with RawClient(broker.url, tls=authority.trusting()) as client:
            lines = client.request("GET", "/metrics").body.decode().splitlines()
        assert 'tallystick_connections_cut_total{why="handshake"} 1.0' in lines
        assert "tallystick_connections 1.0" in lines


def test_connections_that_do_not_begin_tls_are_counted_too(authority: Authority) -> None:
    with running_broker(**settings(authority, max_connections_per_address=2, head_timeout="10m")) as broker:
        eventually(lambda: fits(broker, authority), "no other connection of the tests is left")
        held = [socket.create_connection(("127.0.0.1", broker.port), timeout=30) for _ in range(2)]
        try:
            eventually(lambda: not fits(broker, authority), "there is no place")
        finally:
            for one in held:
                one.close()
        eventually(lambda: fits(broker, authority), "there is a place again")


def fits(broker: BrokerProcess, authority: Authority) -> bool:
    try:
        with encrypted(broker, authority.trusting()) as made:
            made.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            return made.recv(9) == b"HTTP/1.1 "
    except OSError:
        return False


# --- certificates of clients -------------------------------------------------------------------------------------


def test_the_names_in_a_clients_certificate_are_told(broker: BrokerProcess, authority: Authority) -> None:
    own = authority.issue("billing", "billing.shop.internal", uris=("spiffe://shop/billing",), emails=("b@shop.org",))
    told = echo(broker, authority.trusting(*own))
    assert told["scheme"] == "https"
    assert told["client"][0] == "127.0.0.1"
    assert told["tls_names"] == [
        "CN=billing",
        "DNS:billing.shop.internal",
        "URI:spiffe://shop/billing",
        "EMAIL:b@shop.org",
    ]
    assert echo(broker, authority.trusting())["tls_names"] == []


def test_a_certificate_that_does_not_count_is_refused_though_none_is_needed(
    broker: BrokerProcess, authority: Authority, stranger: Authority
) -> None:
    assert_refused(broker, authority.trusting(*stranger.issue("billing")), "CERTIFICATE_VERIFY_FAILED")
    late = authority.trusting(*authority.issue("late", days=-1))
    assert_refused(broker, late, "CERTIFICATE_VERIFY_FAILED")


def test_a_certificate_can_be_insisted_on(authority: Authority, stranger: Authority) -> None:
    insisting = settings(authority, tls_client_ca=authority.path, tls_client_required=True)
    with running_broker(**insisting, prelude=ECHO) as broker:
        assert_refused(broker, authority.trusting(), "PEER_DID_NOT_RETURN_A_CERTIFICATE")
        for own in (stranger.issue("billing"), authority.issue("late", days=-1)):
            assert_refused(broker, authority.trusting(*own), "CERTIFICATE_VERIFY_FAILED")
        assert echo(broker, authority.trusting(*authority.issue("shop")))["tls_names"] == ["CN=shop"]


def test_without_tls_nobody_has_names() -> None:
    with running_broker(prelude=ECHO) as broker, RawClient(broker.url) as client:
        told = json.loads(client.request("GET", "/echo").body)
    assert (told["scheme"], told["tls_names"]) == ("http", [])


# --- files that are not right ------------------------------------------------------------------------------------


def refused(**given: object) -> ConfigError:
    with pytest.raises(ConfigError) as found:
        Tls(Config(**{name: str(value) for name, value in given.items()}))
    return found.value


def test_files_that_are_not_right_are_told_by_their_setting(authority: Authority, tmp_path: Path) -> None:
    good, key = authority.issue("good", "127.0.0.1")
    _, other_key = authority.issue("other", "127.0.0.1")
    nothing, secret = tmp_path / "nothing.pem", tmp_path / "secret.key"
    nothing.write_text("hello\n")
    secret.write_bytes(with_password(key))
    wrong = [
        (refused(tls_cert=tmp_path / "missing.pem", tls_key=key), "tls_cert", "No such file"),
        (refused(tls_cert=nothing, tls_key=key), "tls_cert", "no certificate"),
        (refused(tls_cert=good, tls_key=tmp_path / "missing.pem"), "tls_key", "No such file"),
        (refused(tls_cert=good, tls_key=nothing), "tls_key", "no key"),
        (refused(tls_cert=good, tls_key=other_key), "tls_key", "not the key of the certificate"),
        (refused(tls_cert=good, tls_key=secret), "tls_key", "password"),
        (refused(tls_cert=good, tls_key=key, tls_client_ca=nothing), "tls_client_ca", "no certificate"),
        (refused(tls_ca=nothing), "tls_ca", "no certificate"),
        (refused(tls_ca=tmp_path), "tls_ca", "Is a directory"),
    ]
    late, late_key = authority.issue("late", "127.0.0.1", days=-1)
    wrong.append((refused(tls_cert=late, tls_key=late_key), "tls_cert", "expired on"))
    for error, setting, words in wrong:
        assert error.field == setting
        assert error.detail.startswith(f"{setting}: ")
        assert words in error.detail


def with_password(key: Path) -> bytes:
    from cryptography.hazmat.primitives import serialization

    made = serialization.load_pem_private_key(key.read_bytes(), None)
    sealed = serialization.BestAvailableEncryption(b"word")
    return made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tls_cert": "a"}, "tls_cert"),
        ({"tls_key": "a"}, "tls_key"),
        ({"tls_client_ca": "a"}, "tls_client_ca"),
        ({"tls_client_required": "true", "tls_cert": "a", "tls_key": "b"}, "tls_client_required"),
        ({"certificates": '[{"name": "CN=a", "roles": ["reader"]}]'}, "certificates"),
    ],
)
def test_settings_that_need_each_other_are_told(given: dict[str, str], field: str) -> None:
    with pytest.raises(ConfigError) as found:
        load_config(flags=given, environ={})
    assert found.value.field == field


def test_a_broker_with_wrong_files_does_not_start(authority: Authority) -> None:
    certificate, key = authority.issue("late", "127.0.0.1", days=-1)
    with running_broker(tls_cert=certificate, tls_key=key, tls_ca=authority.path, start=False) as broker:
        broker.spawn()
        assert broker.ends_before_ready()
        assert "tls_cert: " in broker.log_text()
        assert "the certificate expired on" in broker.log_text()
