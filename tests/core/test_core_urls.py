"""URLs that can be called at all, whatever an operator allows."""

from __future__ import annotations

import pytest

from tallystick.core.errors import InvalidRequest, NotAllowed
from tallystick.core.urls import UrlParts, check_url, url_parts


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://shop.internal/a?b=c", UrlParts("http", "shop.internal", 80, "/a", "b=c")),
        ("HTTPS://Shop_1.internal", UrlParts("https", "shop_1.internal", 443, "", "")),
        ("grpc://[::1]:5/a.B/C", UrlParts("grpc", "::1", 5, "/a.B/C", "")),
        ("http://127.0.0.1:8080/", UrlParts("http", "127.0.0.1", 8080, "/", "")),
    ],
)
def test_a_url_is_taken_apart(url: str, parts: UrlParts) -> None:
    assert url_parts(url) == parts
    check_url(url, "url")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://shop/",
        "shop:80",
        "http:///path",
        "http://",
        "http://shop:99999/",
        "http://shop:0/",
        "http://shop:x/",
        "http://[::1/",
        "http://me@shop/",
        "http://shop/a b",
        "http://shop/\n",
        "http://shop\\evil/",
        "http://sh%6fp/",
        "http://läden.example/",
        "grpc://shop/a.B/C",
    ],
)
def test_what_no_allow_list_lets_through_is_refused_with_the_reason(url: str) -> None:
    with pytest.raises(ValueError, match=r"it|host|[Pp]ort|IPv6"):
        url_parts(url)
    with pytest.raises(NotAllowed) as refused:
        check_url(url, "calls[0].url")
    assert refused.value.field == "calls[0].url"


def test_a_call_topic_has_a_name() -> None:
    check_url("topic://orders", "url")
    for url in ("topic://", "topic://a b", "topic:///a"):
        with pytest.raises(InvalidRequest):
            check_url(url, "url")
