"""Addresses of brokers: one spelling for each, and a word for what is none."""

from __future__ import annotations

import pytest

from tallystick.core.addresses import broker_address


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("127.0.0.1:7440", "http://127.0.0.1:7440"),
        (" http://LocalHost:7440/ ", "http://localhost:7440"),
        ("HTTP://localhost:80", "http://localhost"),
        ("https://broker:443/a/b/", "https://broker/a/b"),
        ("http://broker:443", "http://broker:443"),
        ("[::1]:7440", "http://[::1]:7440"),
        ("http://bücher.example:1", "http://xn--bcher-kva.example:1"),
        ("http://shop:p%40ss@broker:1/ä b", "http://shop:p%40ss@broker:1/%C3%A4%20b"),
    ],
)
def test_an_address_has_one_spelling(given: str, text: str) -> None:
    assert broker_address(given).text == text
    assert broker_address(text).text == text


def test_an_address_is_taken_apart() -> None:
    found = broker_address("https://shop:p%40ss@[::1]:7440/behind")
    assert (found.scheme, found.host, found.port, found.path) == ("https", "::1", 7440, "/behind")
    assert found.authority == "[::1]:7440"
    assert found.login == ("shop", "p@ss")
    assert broker_address("broker:1").login is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://",
        "ftp://broker",
        "http://broker:port",
        "http://broker:99999",
        "http://[::1",
        "http://a?b=c",
        "http://a#b",
        "not a url",
        "http://broker one:7440",
        "http://broker\x7f:7440",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        broker_address(text)
