"""Certificates that are exchanged while the broker runs, under load; and gRPC over TLS."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokers import BrokerProcess, running_broker
from certificates import Authority, serial_of
from eventually import eventually, eventually_equal
from raw_client import RawClient
from tallystick.api.serving.grpc import _credentials
from tallystick.api.serving.grpc_evidence import Context, grpc_evidence
from tallystick.api.serving.tls import Tls
from tallystick.broker.config import Config
from tallystick.core.access import Evidence

ONLY_WHEN_TOLD = "import tallystick.api.serving.tls as tls\n\ntls.LOOK_SECONDS = 3_600.0"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings(authority: Authority, **more: Any) -> dict[str, Any]:
    certificate, key = authority.issue("broker", "127.0.0.1")
    return {"tls_cert": certificate, "tls_key": key, "tls_ca": authority.path, **more}


def shown(port: int, authority: Authority, protocol: str = "http/1.1") -> int:
    """The number of the certificate that a new connection is shown."""
    context = authority.trusting()
    context.set_alpn_protocols([protocol])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as made,
    ):
        der = made.getpeercert(binary_form=True)
        assert der is not None
        return serial_of(ssl.DER_cert_to_PEM_cert(der))


def channel_to(broker: BrokerProcess, authority: Authority, *own: Path) -> grpc.Channel:
    key, chain = (own[1].read_bytes(), own[0].read_bytes()) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(authority.path.read_bytes(), key, chain)
    # Channels to one address share their connection unless they are told not to.
    return grpc.secure_channel(broker.grpc, credentials, [("grpc.use_local_subchannel_pool", 1)])


def new_gid(channel: grpc.Channel) -> bytes:
    answer: bytes = channel.unary_unary("/dtmgimp.Dtm/NewGid")(b"", timeout=30)
    return answer


class Load:
    """Somebody who asks without a pause; what went wrong is kept."""

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask, self._stop = ask, threading.Event()
        self.count, self.failure = 0, ""
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self._stop.is_set() and not self.failure:
            try:
                self._ask()
                self.count += 1
            except Exception as error:
                self.failure = repr(error)

    def end(self) -> None:
        self._stop.set()
        self.thread.join()


@contextmanager
def under_load(*asks: Callable[[], object]) -> Iterator[list[Load]]:
    loads = [Load(ask) for ask in asks]
    try:
        eventually(lambda: all(load.count or load.failure for load in loads), "everybody has asked")
        yield loads
    finally:
        for load in loads:
            load.end()
    assert [load.failure for load in loads if load.failure] == []


def ask_anew(broker: BrokerProcess, authority: Authority) -> None:
    with RawClient(broker.url, tls=authority.trusting()) as client:
        assert client.request("GET", "/readyz").status == 200


def call_anew(broker: BrokerProcess, authority: Authority) -> None:
    with channel_to(broker, authority) as channel:
        new_gid(channel)


def test_certificates_are_exchanged_under_load_and_nobody_notices(authority: Authority) -> None:
    with running_broker(**settings(authority), grpc=True) as broker:
        before = shown(broker.port, authority)
        assert shown(broker.grpc_port, authority, "h2") == before
        with RawClient(broker.url, tls=authority.trusting()) as kept, channel_to(broker, authority) as channel:
            sent = {"messages": [{"topic": "t", "value": "x"}]}

            def send() -> None:
                assert kept.json("POST", "/v1/messages", sent).status == 201

            asks: list[Callable[[], object]] = [
                send,
                lambda: new_gid(channel),
                lambda: ask_anew(broker, authority),
                lambda: call_anew(broker, authority),
            ]
            with under_load(*asks) as loads:
                for _ in range(3):
                    after = serial_of(authority.issue("broker", "127.0.0.1")[0])
                    eventually_equal(lambda: shown(broker.port, authority), after)
                    eventually_equal(lambda: shown(broker.grpc_port, authority, "h2"), after)
                    seen = [load.count for load in loads]
                    eventually(
                        lambda seen=seen: all(  # type: ignore[misc]
                            load.count > was or load.failure for load, was in zip(loads, seen, strict=True)
                        ),
                        "everybody has asked since",
                    )
            with RawClient(broker.url, tls=authority.trusting()) as client:
                lines = client.request("GET", "/metrics").body.decode().splitlines()
            done = next(line for line in lines if line.startswith('tallystick_tls_reloads_total{outcome="done"}'))
            assert float(done.rpartition(" ")[2]) >= 3
            expires = next(line for line in lines if line.startswith("tallystick_tls_expires_seconds"))
            assert 6 * 86_400 < float(expires.rpartition(" ")[2]) <= 7 * 86_400


def test_a_signal_has_them_looked_at_and_wrong_ones_are_not_used(authority: Authority) -> None:
    with running_broker(**settings(authority), prelude=ONLY_WHEN_TOLD) as broker:
        before = shown(broker.port, authority)
        good = [path.read_bytes() for path in (authority.directory / "broker.crt", authority.directory / "broker.key")]
        fresh, key = authority.issue("broker", "127.0.0.1")
        renewed = key.read_bytes()
        key.write_bytes(good[1])  # the key of the old one
        told(broker, "the new certificates are not used, the ones before are: tls_key: ")
        assert shown(broker.port, authority) == before
        fresh.write_bytes(fresh.read_bytes()[:100])
        told(broker, "the ones before are: tls_cert: ")
        assert shown(broker.port, authority) == before
        fresh.unlink()
        told(broker, "No such file or directory")
        assert shown(broker.port, authority) == before
        after = serial_of(authority.issue("broker", "127.0.0.1")[0])
        told(broker, "the certificates were exchanged; valid until ")
        assert shown(broker.port, authority) == after
        assert renewed.decode().splitlines()[1] not in broker.log_text()


def told(broker: BrokerProcess, words: str) -> None:
    assert broker.process is not None
    broker.process.send_signal(signal.SIGHUP)
    eventually(lambda: words in broker.log_text(), words)


def test_another_ca_of_clients_counts_for_new_connections(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    second = Authority(tmp_path / "second", "second")
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.path.read_bytes())
    with running_broker(**settings(authority, tls_client_ca=trusted)) as broker:
        mine, theirs = authority.trusting(*authority.issue("a")), authority.trusting(*second.issue("b"))
        assert taken(broker, mine)
        assert not taken(broker, theirs)
        trusted.write_bytes(second.path.read_bytes())
        eventually(lambda: taken(broker, theirs), "the new CA counts")
        assert not taken(broker, mine)


def taken(broker: BrokerProcess, context: ssl.SSLContext) -> bool:
    try:
        with RawClient(broker.url, tls=context) as client:
            return client.request("GET", "/healthz").status == 200
    except OSError:
        return False


# --- gRPC --------------------------------------------------------------------------------------------------------


def test_grpc_is_spoken_over_tls_alone(authority: Authority) -> None:
    with running_broker(**settings(authority), grpc=True) as broker:
        with channel_to(broker, authority) as channel:
            assert new_gid(channel)
        with grpc.insecure_channel(broker.grpc) as plain, pytest.raises(grpc.RpcError) as refused:
            new_gid(plain)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]


def test_grpc_insists_on_a_certificate_that_counts(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "stranger").mkdir()
    stranger = Authority(tmp_path / "stranger", "stranger")
    insisting = settings(authority, tls_client_ca=authority.path, tls_client_required=True)
    with running_broker(**insisting, grpc=True) as broker:
        for own in ((), stranger.issue("a"), authority.issue("late", days=-1)):
            with channel_to(broker, authority, *own) as channel, pytest.raises(grpc.RpcError):
                new_gid(channel)
        with channel_to(broker, authority, *authority.issue("a")) as channel:
            assert new_gid(channel)


async def test_a_call_shows_who_makes_it(authority: Authority) -> None:
    seen: list[Evidence] = []

    async def look(_: bytes, context: Context) -> bytes:
        seen.append(grpc_evidence(context))
        return b""

    certificate, key = authority.issue("broker", "127.0.0.1", "localhost")
    config = Config(
        tls_cert=str(certificate), tls_key=str(key), tls_client_ca=str(authority.path), tls_client_required=True
    )
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(look)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"look": method}),))
    port = server.add_secure_port("127.0.0.1:0", _credentials(Tls(config)))
    plain = server.add_insecure_port("[::1]:0")
    await server.start()
    own = authority.issue("shop", "shop.internal", uris=("spiffe://shop",), emails=("s@shop.org",))
    credentials = grpc.ssl_channel_credentials(authority.path.read_bytes(), own[1].read_bytes(), own[0].read_bytes())
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        await channel.unary_unary("/s/look")(b"", metadata=(("authorization", "Bearer x"),))
    async with grpc.aio.insecure_channel(f"[::1]:{plain}") as channel:
        await channel.unary_unary("/s/look")(b"")
    await server.stop(None)
    names = ("CN=shop", "DNS:shop.internal", "URI:spiffe://shop", "EMAIL:s@shop.org")
    assert seen == [Evidence("Bearer x", "127.0.0.1", names), Evidence("", "::1", ())]
