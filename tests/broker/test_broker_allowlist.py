"""The URLs a broker may call: what the operator wrote, and no trick gets further."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from web_sites import site
from yarl import URL

from tallystick.broker.config import LOOPBACK_URLS, Config
from tallystick.broker.outbound.allow_list import AllowedUrls, Resolver
from tallystick.broker.outbound.answer import OutboundFailed
from tallystick.broker.outbound.outbound import Outbound
from tallystick.core.errors import ConfigError, NotAllowed

LOOPBACK = AllowedUrls(LOOPBACK_URLS)
WIDE = AllowedUrls(["http://*:*", "http://*.*:*", "http://*.*.*.*:*", "https://*:443"])


def allowed(patterns: AllowedUrls, url: str) -> bool:
    try:
        patterns.check(url, "url")
    except NotAllowed:
        return False
    return True


# --- patterns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("http://127.0.0.1:*", "http://127.0.0.1:8080/check?x=1"),
        ("http://127.0.0.1:*", "http://127.0.0.1/"),
        ("http://127.0.0.1:80", "http://127.0.0.1"),
        ("https://pay.internal:443", "https://pay.internal/check"),
        ("http://localhost:7000", "HTTP://LocalHost:7000/"),
        ("http://LocalHost:7000", "http://localhost:7000/"),
        ("http://[::1]:*", "http://[::1]:9/"),
        ("http://*.internal:8080", "http://shop.internal:8080/"),
        ("http://shop-*.internal:8080", "http://shop-7.internal:8080/"),
        ("http://*.*.internal:8080", "http://a.b.internal:8080/"),
        ("http://10.0.0.*:80", "http://10.0.0.7/"),
    ],
)
def test_what_matches_is_allowed(pattern: str, url: str) -> None:
    assert allowed(AllowedUrls([pattern]), url)


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("http://shop.internal:8080", "https://shop.internal:8080/"),
        ("http://shop.internal:8080", "http://shop.internal:8081/"),
        ("http://shop.internal:8080", "http://shop.internal/"),
        ("http://shop.internal:80", "http://shop.internal:8080/"),
        ("http://shop.internal:8080", "http://shopxinternal:8080/"),
        ("http://shop.internal:8080", "http://evil.shop.internal:8080/"),
        ("http://shop.internal:8080", "http://shop.internal.evil:8080/"),
        ("http://shop.internal:8080", "http://shop.internal.:8080/"),
        ("http://*.internal:8080", "http://internal:8080/"),
        ("http://*.internal:8080", "http://.internal:8080/"),
        ("http://*.internal:8080", "http://a.b.internal:8080/"),
        ("http://*.internal:8080", "http://evil.com/.internal:8080/"),
        ("http://*.internal:8080", "http://evil.com?.internal:8080/"),
        ("http://*.internal:8080", "http://evil.com#.internal:8080/"),
        ("http://*.internal:8080", "http://a_b.internal:8080/"),
        ("http://*.internal:8080", "http://b\u00fccher.internal:8080/"),
        ("http://*.internal:8080", "http://a\n.internal:8080/"),
    ],
)
def test_what_only_resembles_is_not(pattern: str, url: str) -> None:
    assert not allowed(AllowedUrls([pattern]), url)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "*",
        "http://*",
        "http://host",
        "http://host:",
        "http://host:80/path",
        "http://host:80/",
        "http://user@host:80",
        "ftp://host:21",
        "http://host:123456",
        "http://ho st:80",
        "http://host:80\n",
        "host:80",
        "http://[::1:80",
        "http://(a|b):80",
    ],
)
def test_a_pattern_that_is_none_is_refused_at_the_start(pattern: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AllowedUrls([pattern])
    assert refused.value.field == "allowed_urls"
    assert repr(pattern) in refused.value.detail


def test_a_refusal_names_the_field_and_what_would_mend_it() -> None:
    with pytest.raises(NotAllowed) as refused:
        LOOPBACK.check("http://evil.com/" + "x" * 5_000, "ops[3].check.target")
    assert refused.value.field == "ops[3].check.target"
    assert "http://evil.com/" in refused.value.detail
    assert "allowed_urls" in refused.value.detail
    assert len(refused.value.detail) < 400


def test_nothing_is_allowed_where_nothing_was_written() -> None:
    assert not allowed(AllowedUrls([]), "http://127.0.0.1:80/")


def test_by_default_only_this_machine_may_be_called() -> None:
    default = AllowedUrls(Config().allowed_urls)
    assert allowed(default, "http://localhost:8000/")
    assert not allowed(default, "http://example.com/")
    assert not allowed(default, "https://127.0.0.1/")


# --- tricks --------------------------------------------------------------------------------------------------------

TRICKS = [
    # somebody in front of the host
    "http://127.0.0.1:80@evil.com/",
    "http://127.0.0.1@evil.com/",
    "http://evil.com@127.0.0.1/",
    "http://user:secret@127.0.0.1/",
    "http://@127.0.0.1/",
    "http://:@127.0.0.1/",
    "http://127.0.0.1%40evil.com/",
    # the same address written otherwise
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7f.0x0.0x0.0x1/",
    "http://017700000001/",
    "http://0177.0.0.1/",
    "http://127.1/",
    "http://127.0.1/",
    "http://127.000.000.001/",
    "http://127.0.0.2/",
    "http://127.255.255.254/",
    "http://0/",
    "http://0.0.0.0/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::1%25lo]/",
    "http://[::127.0.0.1]/",
    "http://\u2460\u2461\u2466.0.0.1/",
    "http://127\u30020.0.1/",
    "http://\uff11\uff12\uff17.0.0.1/",
    # names that look the same
    "http://localhost./",
    "http://127.0.0.1./",
    "http://\u24c1ocalhost/",
    "http://loc\u00adalhost/",
    "http://localhost%00.evil.com/",
    "http://localhost.evil.com/",
    # other schemes
    "https://127.0.0.1/",
    "ftp://127.0.0.1/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:25/",
    "unix://127.0.0.1/",
    "http+unix://127.0.0.1/",
    "javascript:alert(1)",
    "data:text/plain,committed",
    "//127.0.0.1/",
    "127.0.0.1",
    "/check",
    "",
    "http:",
    "http://",
    "http:///127.0.0.1/",
    "http:127.0.0.1",
    # what programs read differently
    "http:\\\\127.0.0.1\\",
    "http://127.0.0.1\\@evil.com/",
    "http://evil.com\\@127.0.0.1/",
    "http://127.0.0.1:80\\.evil.com/",
    " http://127.0.0.1/",
    "http://127.0.0.1/ ",
    "http://127.0.0.1 /",
    "http://127.0.0.1/a b",
    "http://127.0.0.1\t/",
    "ht\ntp://127.0.0.1/",
    "http://127.0.0.1/\r\nHost: evil.com",
    "http://127.0.0.1/\u2028",
    "http://127.0.0.1:80:80/",
    "http://127.0.0.1:port/",
    "http://127.0.0.1:99999/",
    "http://127.0.0.1:-1/",
    "http://127.0.0.1:\uff18\uff10/",
    "http://[::1/",
    "http://::1/",
    "http://[127.0.0.1]/",
]


@pytest.mark.parametrize("url", TRICKS)
def test_no_trick_matches_the_loopback_patterns(url: str) -> None:
    assert not allowed(LOOPBACK, url)


@pytest.mark.parametrize(
    "url",
    [
        "http://2130706433/",
        "http://017700000001/",
        "http://127.1/",
        "http://127.0.0.1/",
        "http://127.9.9.9/",
        "http://0.0.0.0/",
        "http://0/",
        "http://169.254.169.254/latest/meta-data",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://100.64.0.1/",
        "http://0177.0.0.1/",
        "http://1.2.3/",
    ],
)
def test_a_wildcard_does_not_lead_to_special_addresses_that_are_written_as_numbers(url: str) -> None:
    assert not allowed(WIDE, url)


def test_a_wildcard_leads_to_ordinary_addresses_and_names() -> None:
    assert allowed(WIDE, "http://10.1.2.3/")
    assert allowed(WIDE, "http://93.184.216.34/")
    assert allowed(WIDE, "http://shop.internal/")


def test_a_special_address_that_the_operator_wrote_is_allowed_beside_a_wildcard() -> None:
    assert allowed(AllowedUrls(["http://*.*.*.*:*", "http://169.254.1.1:*"]), "http://169.254.1.1/")


@given(
    scheme=st.sampled_from(["http", "HTTP", "https", "ftp", ""]),
    between=st.sampled_from(["://", ":/", ":", "//", ":\\\\", ":///"]),
    user=st.sampled_from(["", "a@", "a:b@", "127.0.0.1@", "%40"]),
    host=st.sampled_from(["127.0.0.1", "localhost", "evil.com", "[::1]", "127.1", "[::ffff:127.0.0.1]", "LOCALHOST."]),
    port=st.sampled_from(["", ":80", ":0", ":x", ":65536"]),
    rest=st.text(alphabet="/\\@#?.:% \t\nae1", max_size=8),
)
@example("http", "://", "", "127.0.0.1", "", "\\@evil.com")
@example("http", "://", "", "[::1]", "", "1")
def test_whatever_is_allowed_leads_to_the_host_that_was_allowed(
    scheme: str, between: str, user: str, host: str, port: str, rest: str
) -> None:
    """The library that connects reads the URL by itself: it must come to the same host as the check did."""
    url = f"{scheme}{between}{user}{host}{port}{rest}"
    if not allowed(LOOPBACK, url):
        return
    read = URL(url)
    assert read.scheme == "http"
    assert read.host in ("127.0.0.1", "localhost", "::1")
    assert read.user is read.password is None
    assert LOOPBACK.target(url, "url").host == read.host


# --- names that lead somewhere -------------------------------------------------------------------------------------


async def fetched(patterns: list[str], url: str) -> Any:
    outbound = Outbound(AllowedUrls(patterns))
    try:
        return (await outbound.get(url, {}, 2.0)).status
    except OutboundFailed as error:
        return error
    finally:
        await outbound.close()


async def test_a_name_that_leads_to_loopback_is_refused_under_a_wildcard() -> None:
    async with site() as there:
        url = f"http://localhost:{there.port}/"
        refused = await fetched([f"http://*:{there.port}"], url)
        assert isinstance(refused, OutboundFailed)
        assert "allowed_urls does not name" in str(refused)
        assert there.requests == []
        # The same name, written by the operator, is a different matter.
        assert await fetched([f"http://localhost:{there.port}"], url) == 200


@pytest.mark.parametrize("host", ["0x7f000001", "0x7f.1", "2130706433", "127.1", "0.0.0.0", "[::ffff:127.0.0.1]"])
async def test_an_address_in_disguise_reaches_nobody(host: str) -> None:
    async with site() as there:
        patterns = [f"http://{'.'.join('*' * (host.count('.') + 1))}:{there.port}", f"http://127.0.0.1:{there.port}"]
        assert isinstance(await fetched(patterns, f"http://{host}:{there.port}/"), OutboundFailed)
        assert there.requests == []


async def resolved(patterns: list[str], *addresses: str) -> list[str]:
    """What is left of the addresses that a name server gives for `shop.internal`."""
    return await Resolver(AllowedUrls(patterns), lambda _: list(addresses)).addresses("shop.internal")


@pytest.mark.parametrize(
    "address", ["10.0.0.5", "192.168.1.9", "172.16.0.1", "93.184.216.34", "fd00::5", "2606:4700::1"]
)
async def test_ordinary_addresses_are_reached_under_a_wildcard(address: str) -> None:
    assert await resolved(["http://*.internal:80"], address) == [address]


SPECIAL = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fe80::1%eth0",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
]


@pytest.mark.parametrize("address", SPECIAL)
async def test_special_addresses_need_to_be_named(address: str) -> None:
    with pytest.raises(OSError, match=r"shop\.internal leads to an address"):
        await resolved(["http://*.internal:80"], address)
    assert await resolved(["http://shop.internal:80"], address) == [address]


async def test_of_several_addresses_the_special_ones_are_left_out() -> None:
    assert await resolved(["http://*.internal:80"], "127.0.0.1", "10.0.0.5", "::1") == ["10.0.0.5"]
