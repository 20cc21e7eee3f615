"""`tallystick doctor` on TLS: what is wrong between here and the broker is told in words."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, tallystick

from brokers import BrokerProcess, running_broker
from certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextmanager
def serving(authority: Authority, *hosts: str, days: float = 30, **more: Any) -> Iterator[BrokerProcess]:
    certificate, key = authority.issue("broker", *hosts, days=days)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BrokerProcess, "tls", property(lambda _: careless(certificate, key)))
        with running_broker(tls_cert=certificate, tls_key=key, **more) as broker:
            yield broker


def careless(certificate: Path, key: Path) -> ssl.SSLContext:
    """Whether the certificate is right is the doctor's to say."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(certificate, key)
    return context


def examined(url: str, ca: Path) -> Done:
    return tallystick("doctor", "--no-environment", "--json", url=url, SSL_CERT_FILE=str(ca))


def finding(done: Done) -> dict[str, str]:
    (found,) = (one for one in done.json()["findings"] if one["subject"] == "TLS")
    return dict(found)


def test_a_certificate_that_is_right_is_told_with_its_names_and_days(authority: Authority) -> None:
    with serving(authority, "127.0.0.1", "broker.internal") as broker:
        done = examined(broker.url, authority.path)
    assert done.code == 0, done.out
    assert finding(done)["status"] == "ok"
    assert finding(done)["text"] == "the certificate is for 127.0.0.1, broker.internal, and valid for 29 more days"
    assert {"broker", "ready"} <= {one["subject"] for one in done.json()["findings"]}


def test_one_that_expires_soon_is_worth_a_note(authority: Authority) -> None:
    with serving(authority, "127.0.0.1", days=13.5) as broker:
        done = examined(broker.url, authority.path)
    assert (done.code, finding(done)["status"]) == (0, "note")
    assert "valid for 13 more days" in finding(done)["text"]


def test_another_name_another_ca_and_other_ports_are_told_apart(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    with serving(authority, "elsewhere.internal") as broker:
        assert "is for elsewhere.internal, not for 127.0.0.1" in problem(examined(broker.url, authority.path))
        assert "of a CA that is not trusted here" in problem(examined(broker.url, other.path))
        plain = broker.url.replace("https", "http")
        assert "speaks TLS, and was asked in plain http" in problem(examined(plain, authority.path))
    with running_broker() as broker:
        encrypted = broker.url.replace("http", "https")
        assert "speaks plain http, and was asked over TLS" in problem(examined(encrypted, authority.path))


def test_of_several_addresses_one_that_speaks_tls_now_is_passed_over(authority: Authority) -> None:
    with running_broker() as plain:
        url = plain.url
        with serving(authority, "127.0.0.1") as encrypted:
            switched = encrypted.url.replace("https", "http")
            asked = tallystick("topics", "--json", url=f"{switched},{url}")
            in_vain = tallystick("topics", url=f"{switched},http://127.0.0.1:9")
        assert asked.code == 0, asked.err
        assert (in_vain.code, "this port speaks TLS" in in_vain.err) == (4, True), in_vain.err


def test_a_broker_that_insists_on_a_certificate_is_told(authority: Authority) -> None:
    insisting = {"tls_client_ca": authority.path, "tls_client_required": True}
    with serving(authority, "127.0.0.1", **insisting) as broker:
        done = examined(broker.url, authority.path)
    assert done.code == 1
    found = [one for one in done.json()["findings"] if one["subject"] == "TLS"]
    assert [one["status"] for one in found] == ["ok", "problem"]
    assert "tls_client_required" in found[1]["advice"]


def test_a_certificate_that_has_expired_is_told(authority: Authority) -> None:
    """The broker takes none that has, but one may expire while it runs."""
    with serving(authority, "127.0.0.1", prelude=ANY_TIME, days=-1) as broker:
        assert "certificate has expired" in problem(examined(broker.url, authority.path))


ANY_TIME = """
import tallystick.api.serving.tls as tls

tls._check_pair = lambda *given: 0.0
"""


def problem(done: Done) -> str:
    found = finding(done)
    assert (done.code, found["status"]) == (1, "problem")
    assert found["advice"]
    return found["text"]
