"""Brokers at https: whom a client believes, what it shows of itself, and words for what goes wrong."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_support import Bank, values_in

import tallystick
from brokers import BrokerProcess
from client_certificates import TestAuthority, serving
from eventually import eventually
from keeper import doorkeeper
from tallystick.client.connection.views import Views
from tallystick.core.wire import ClusterBroker, ClusterView
from tallystick.credentials.credentials import Credentials, find_credentials
from tallystick.errors import BrokerUnavailable, BrokerUnreachable, BrokerUntrusted, InvalidRequest
from tallystick.link import Link
from tallystick.local import free_port

TOKEN = "tally_over_tls"

Ask = Callable[[str, Credentials], None]


def by_client(url: str, shown: Credentials) -> None:
    with tallystick.Client(url, timeout=2.0, ca=shown.ca or None, cert=shown.cert or None) as client:
        client.send("tls", b"x")


def by_async_client(url: str, shown: Credentials) -> None:
    async def ask() -> None:
        async with tallystick.AsyncClient(url, timeout=2.0, ca=shown.ca or None, cert=shown.cert or None) as client:
            await client.send("tls", b"x")

    asyncio.run(ask())


def by_link(url: str, shown: Credentials) -> None:
    with Link(url, timeout=2.0, credentials=shown) as link:
        link.get("info")


WAYS = pytest.mark.parametrize("ask", [by_client, by_async_client, by_link])


@WAYS
def test_a_broker_with_a_certificate_of_the_named_ca_is_believed(
    ask: Ask, tmp_path: Path, broker: BrokerProcess
) -> None:
    ours = TestAuthority(tmp_path, "ours")
    with doorkeeper(broker.url, tls=serving(ours.sign("broker"))) as keeper:
        ask(keeper.url, find_credentials(ca=ours.file))
        assert keeper.seen


@WAYS
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("ca", "from a CA that is not known here.*TALLYSTICK_CA_FILE"),
        ("expired", "its certificate has expired"),
        ("name", "its certificate is for another name"),
    ],
)
def test_another_broker_is_not_spoken_to(
    ask: Ask, wrong: str, words: str, tmp_path: Path, broker: BrokerProcess
) -> None:
    ours, others = TestAuthority(tmp_path, "ours"), TestAuthority(tmp_path, "others")
    signed = {
        "ca": lambda: others.sign("of-others"),
        "expired": lambda: ours.sign("old", expired=True),
        "name": lambda: ours.sign("other-name", "elsewhere.example"),
    }[wrong]()
    with doorkeeper(broker.url, tls=serving(signed)) as keeper:
        with pytest.raises(BrokerUnreachable, match=words):
            ask(keeper.url, find_credentials(ca=ours.file))
        assert keeper.seen == []


def send_once(client: tallystick.Client, bank: Bank, **options: Any) -> None:
    with bank.connection() as connection, client.transaction(connection, **options) as tx:
        tx.send("tls", b"x")
        if "prepare" in options:
            tx.prepare()
        bank.note(connection, "never")


@pytest.mark.parametrize("options", [{}, {"prepare": "early"}, {"mode": "consumer-dedup"}], ids=str)
def test_a_block_does_not_wait_for_a_certificate_that_is_not_believed(
    tmp_path: Path, broker: BrokerProcess, bank: Bank, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    ours, others = TestAuthority(tmp_path, "ours"), TestAuthority(tmp_path, "others")
    began = time.monotonic()
    with doorkeeper(broker.url, tls=serving(others.sign("of-others"))) as keeper:
        with tallystick.Client(keeper.url, group="g-tls", timeout=300.0, ca=ours.file, database=bank.open) as client:
            for _ in range(2):
                with pytest.raises(BrokerUntrusted, match="from a CA that is not known here"):
                    send_once(client, bank, **options)
        assert keeper.seen == []
    assert time.monotonic() - began < 200  # and not the client's timeout for each
    assert [record for record in caplog.records if "rollback" in record.getMessage()] == []  # nothing was to be undone
    assert bank.notes() == []


@WAYS
def test_what_speaks_no_tls_is_called_that(ask: Ask, tmp_path: Path, broker: BrokerProcess) -> None:
    ours = TestAuthority(tmp_path, "ours")
    with pytest.raises(BrokerUnreachable, match="speaks no TLS"):
        ask(broker.url.replace("http:", "https:"), find_credentials(ca=ours.file))


@WAYS
def test_a_client_certificate_is_shown_to_a_broker_that_wants_one(
    ask: Ask, tmp_path: Path, broker: BrokerProcess
) -> None:
    ours = TestAuthority(tmp_path, "ours")
    with doorkeeper(broker.url, tls=serving(ours.sign("broker"), client_ca=ours.file)) as keeper:
        with pytest.raises(BrokerUnavailable):
            ask(keeper.url, find_credentials(ca=ours.file))
        assert keeper.seen == []
        ask(keeper.url, find_credentials(ca=ours.file, cert=ours.sign("service")))
        assert keeper.seen


def test_nothing_older_than_tls_1_2_is_spoken(tmp_path: Path) -> None:
    context = find_credentials(ca=TestAuthority(tmp_path, "ours").file).tls()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_files_that_are_no_certificates_are_refused_at_once(tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    ours = TestAuthority(tmp_path, "ours")
    with pytest.raises(InvalidRequest, match=r"ca: .*nonsense.pem cannot be used"):
        tallystick.Client("https://broker", ca=nonsense)
    with pytest.raises(InvalidRequest, match=r"cert: .*nonsense.pem cannot be used"):
        tallystick.Client("https://broker", ca=ours.file, cert=nonsense)
    with pytest.raises(InvalidRequest, match=r"cert: .* cannot be used"):  # the key of another certificate
        tallystick.Client("https://broker", cert=ours.sign("one"), key=ours.sign("two"))


def test_a_client_certificate_that_was_renewed_is_shown_without_a_restart(tmp_path: Path) -> None:
    ours = TestAuthority(tmp_path, "ours")
    shown = find_credentials(ca=ours.file, cert=ours.sign("service"))
    before = shown.tls()
    assert shown.tls() is before
    ours.sign("service")
    eventually(lambda: shown.tls() is not before)


def exchanged(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def test_files_that_are_just_being_exchanged_leave_the_last_ones_that_fitted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The certificate is there before its key."""
    ours = TestAuthority(tmp_path, "ours")
    one, other = ours.sign("one"), ours.sign("other")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file in (cert, key):
        exchanged(file, one.read_bytes())
    shown = find_credentials(ca=ours.file, cert=cert, key=key)
    before = shown.tls()
    exchanged(cert, other.read_bytes())
    assert shown.tls() is before
    assert shown.tls() is before
    assert caplog.text.count("cert.pem and") == 1
    exchanged(key, other.read_bytes())
    assert shown.tls() is not before
    ours.file.unlink()
    assert shown.tls()


def own_side_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InvalidRequest("cert: no such thing", field="cert")

    monkeypatch.setattr(Credentials, "tls", fail)


@pytest.mark.parametrize("ask", [by_client, by_async_client])
def test_what_is_wrong_on_our_own_side_is_not_called_a_refusal_and_no_connection_is_made(
    ask: Ask, tmp_path: Path, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = TestAuthority(tmp_path, "ours")
    asked: list[object] = []
    with doorkeeper(broker.url, tls=serving(ours.sign("broker"))) as keeper:
        shown = find_credentials(ca=ours.file)
        own_side_fails(monkeypatch)
        monkeypatch.setattr(Credentials, "check", lambda self: self)  # it has begun to fail after the start
        monkeypatch.setattr("socket.create_connection", lambda *args, **more: asked.append(args))
        with pytest.raises(BrokerUnreachable, match=r"is not asked .*no such thing"):
            ask(keeper.url, shown)
        assert (keeper.seen, asked) == ([], [])


def test_a_commit_that_cannot_be_said_just_now_is_said_again(
    tmp_path: Path, broker: BrokerProcess, topic: str, bank: Bank
) -> None:
    ours = TestAuthority(tmp_path, "ours")
    with (
        doorkeeper(broker.url, TOKEN, serving(ours.sign("broker"))) as keeper,
        tallystick.Client(keeper.url, group="g-tls", token=TOKEN, ca=ours.file, check_after=60.0) as client,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        client.create_topic(topic)
        with bank.connection() as connection, client.transaction(connection, prepare="early") as tx:
            tx.send(topic, {"paid": 1})
            tx.prepare()
            bank.note(connection, "paid")
            own_side_fails(monkeypatch)
            client._producer().connection.brokers.only.threads._wire.close()  # type: ignore[union-attr]
        assert values_in(broker.url, topic) == []
        monkeypatch.undo()
        eventually(lambda: len(values_in(broker.url, topic)) == 1)
        assert client.stats.commits_left_to_check == 0


def test_a_service_works_over_tls_with_a_token(tmp_path: Path, broker: BrokerProcess, topic: str) -> None:
    ours = TestAuthority(tmp_path, "ours")
    got: list[bytes] = []
    with (
        doorkeeper(broker.url, TOKEN, serving(ours.sign("broker"))) as keeper,
        tallystick.Client(keeper.url, group="g", token=TOKEN, ca=ours.file) as client,
    ):
        client.create_topic(topic)
        client.subscribe(topic, group="readers")(lambda message: got.append(message.value))
        client.start()
        for number in range(20):
            client.send(topic, {"number": number})
        eventually(lambda: len(got) == 20)
    assert {authorization for _, authorization in keeper.seen} == {f"Bearer {TOKEN}"}


def test_an_environment_without_https_loads_no_tls_of_ours() -> None:
    """A token needs none: certificates of the system are read only for https."""
    shown = find_credentials()
    assert shown._tls is None
    with pytest.raises(BrokerUnavailable):
        by_link(f"http://127.0.0.1:{free_port()}", shown)
    assert shown._tls is None


def test_a_link_reads_the_files_of_tls_again_for_its_next_connection(tmp_path: Path, broker: BrokerProcess) -> None:
    ours, others = TestAuthority(tmp_path, "ours"), TestAuthority(tmp_path, "others")
    right = ours.file.read_bytes()
    believed = tmp_path / "believed.pem"
    believed.write_bytes(others.file.read_bytes())
    with (
        doorkeeper(broker.url, tls=serving(ours.sign("broker"))) as keeper,
        Link(keeper.url, credentials=find_credentials(ca=believed)) as link,
    ):
        with pytest.raises(BrokerUnreachable, match="not known here"):
            link.get("info")
        exchanged(believed, right)
        link.get("info")


def test_who_was_given_https_alone_does_not_go_on_without_it(caplog: pytest.LogCaptureFixture) -> None:
    for given, followed in (
        (["https://one"], ["https://two", "http://127.0.0.1:7440"]),
        (["https://one", "http://two:7440"], ["https://two", "http://three.example:1", "http://127.0.0.1:7440"]),
    ):
        views = Views(given)
        for _ in range(2):
            named = [views.followed(url) for url in ("https://two", "http://three.example:1", "http://127.0.0.1:7440")]
        assert [url for url in named if url] == followed
        views.learn(ClusterView([], brokers=[ClusterBroker("b", "b", "http://three.example:1")]))
        assert ("http://three.example:1" in views.addresses) == ("http://three.example:1" in followed)
    assert caplog.text.count("there is one at three.example:1, without TLS") == 1


def test_an_address_that_only_an_outbox_row_names_gets_no_token(tmp_path: Path, broker: BrokerProcess) -> None:
    with (
        doorkeeper(broker.url, TOKEN) as keeper,
        doorkeeper(broker.url) as stranger,
        tallystick.Client(keeper.url, token=TOKEN) as client,
    ):
        connection = client._producer().connection

        def ask(address: str) -> None:
            async def asked() -> None:
                await (await connection.brokers.of_row("no-store", address)).info()

            asyncio.run_coroutine_threadsafe(asked(), connection.loop).result()

        ask(stranger.url)
        ask(keeper.url)
    assert {authorization for _, authorization in stranger.seen} == {""}
    assert {authorization for _, authorization in keeper.seen} == {f"Bearer {TOKEN}"}
