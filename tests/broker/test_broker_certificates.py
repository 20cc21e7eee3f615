"""Certificates as evidence: the names in them, and what their holders may do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tallystick.broker.access.certificates import MOST_KEPT, CertificatesWay
from tallystick.broker.access.identities import Identities
from tallystick.broker.caller import Callers
from tallystick.broker.config import load_config
from tallystick.core.access import CallerLimits, Evidence, Grant, Identity
from tallystick.core.errors import ConfigError, Unauthenticated

FILE = """
auth = "tokens"
tls_cert = "c"
tls_key = "k"
tls_client_ca = "a"

[[certificates]]
name = "DNS:*.shop.internal"
roles = ["producer"]
topics = ["orders.*"]

[[certificates]]
name = "CN=billing"
roles = ["consumer", "read"]
groups = ["billing"]
hosts = ["pay.internal:443"]
max_in_flight = 5
bytes_per_second = 1_000
"""
PRODUCER = Grant(("producer",), ("orders.*",))
BILLING = Grant(("consumer", "read"), groups=("billing",), hosts=("pay.internal:443",))


@pytest.fixture
def way(tmp_path: Path) -> CertificatesWay:
    file = tmp_path / "broker.toml"
    file.write_text(FILE)
    return CertificatesWay(load_config(file, environ={}).certificates)


async def found(way: CertificatesWay, *names: str) -> Identity | None:
    return await way.identity(Evidence(certificate=names))


async def test_a_name_that_fits_tells_who_it_is_and_what_it_may(way: CertificatesWay) -> None:
    web = await found(way, "CN=web", "DNS:web.shop.internal")
    assert web == Identity("DNS:web.shop.internal", "certificate", (PRODUCER,))
    limits = CallerLimits(5, 1_000)
    assert await found(way, "CN=billing") == Identity("CN=billing", "certificate", (BILLING,), limits)


async def test_the_first_entry_that_fits_counts(way: CertificatesWay) -> None:
    both = await found(way, "CN=billing", "DNS:a.shop.internal")
    assert both is not None
    assert both.grants == (PRODUCER,)


async def test_an_entry_has_limits(way: CertificatesWay) -> None:
    for name, limits in (("CN=billing", CallerLimits(5, 1_000)), ("DNS:web.shop.internal", CallerLimits())):
        somebody = await found(way, name)
        assert somebody is not None
        assert somebody.limits == limits


async def test_who_comes_again_with_a_certificate_is_the_same_caller(way: CertificatesWay) -> None:
    """What a caller may is remembered with the identity, so another one each time would be found out each time."""
    callers = Callers()
    one, again = [await found(way, "CN=web", "DNS:web.shop.internal") for _ in range(2)]
    assert one is not None
    assert again is not None
    assert callers.of(one, "10.0.0.1") is callers.of(again, "10.0.0.1")
    other = await found(way, "DNS:other.shop.internal")
    assert other is not None
    assert other.name == "DNS:other.shop.internal"
    for number in range(2 * MOST_KEPT):
        await found(way, f"DNS:{number}.shop.internal")
    assert len(way._found) <= MOST_KEPT


async def test_hosts_fit_in_letters_of_either_size_and_other_names_do_not(way: CertificatesWay) -> None:
    assert await found(way, "DNS:Web.SHOP.internal") is not None
    assert await found(way, "CN=Billing") is None


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("CN=shop.internal",),
        ("DNS:shop.internal",),
        ("DNS:web.shop.internal.evil.org",),
        ("CN=web.shop.internal",),  # the kind of a name is a part of it
        ("CN=DNS:web.shop.internal",),
        ("DNS:billing",),
        ("CN=billing2",),
        ("URI:spiffe://web.shop.internal",),
        ("DNS:webXshop.internal",),  # a dot is a dot
    ],
)
async def test_whatever_does_not_fit_is_nobody(way: CertificatesWay, names: tuple[str, ...]) -> None:
    assert await found(way, *names) is None


async def test_among_the_ways_it_counts_only_for_those_who_say_nothing(way: CertificatesWay) -> None:
    identities = Identities([], [way])
    assert (await identities.find(Evidence(certificate=("CN=billing",)))).name == "CN=billing"
    with pytest.raises(Unauthenticated):
        await identities.find(Evidence("Bearer wrong", certificate=("CN=billing",)))
    with pytest.raises(Unauthenticated):
        await identities.find(Evidence(certificate=("CN=other",)))


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "*", "roles": ["admin"]},  # whom it means has to be said
        {"name": "billing", "roles": ["admin"]},
        {"name": "CN=", "roles": ["admin"]},
        {"name": "CN=a", "roles": ["emperor"]},
        {"name": "CN=a", "roles": []},
        {"name": "CN=a"},
        {"roles": ["admin"]},
        {"name": "CN=a", "roles": ["admin"], "topic": ["x"]},
        {"name": "CN=a", "roles": ["admin"], "topics": ["a b"]},
    ],
)
def test_an_entry_that_is_not_right_is_told(entry: dict[str, object]) -> None:
    text = msgspec.json.encode([entry]).decode()
    with pytest.raises(ConfigError) as refused:
        load_config(flags={"certificates": text}, environ={})
    assert refused.value.field == "certificates"


def test_text_that_is_no_json_is_told() -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(flags={"certificates": "CN=a"}, environ={})
    assert refused.value.field == "certificates"
