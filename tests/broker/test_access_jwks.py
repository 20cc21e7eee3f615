"""The keys of an identity provider: a file that is replaced, and a real server that rotates, lies and dies."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from identity_provider import (
    Provider,
    asked,
    ec_key,
    ed_key,
    jwks,
    provider,
    public,
    rsa_key,
    settings,
    token,
    why_not,
)

from certificates import self_signed
from dribbling_server import dribbling_server
from eventually import eventually_async
from tallystick.broker.access.jwks import DAY_MS, FRESH_MS, LEAST_BETWEEN_MS, KeysAtAddress, parse_jwks
from tallystick.broker.access.jwt import Jwt, jwt_way
from tallystick.core.clock import ManualClock
from tallystick.core.errors import ConfigError, Unauthenticated


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(jwks(public(rsa_key("one"), "one"), public(ec_key("two"), "two"), public(ed_key("three"), "three")))
    return path


@pytest.fixture
def jwt(keys_file: Path) -> Jwt:
    made = jwt_way(settings(keys_file))
    assert made is not None
    return made


async def test_a_file_that_is_replaced_is_read_again_and_old_tokens_end(jwt: Jwt, keys_file: Path) -> None:
    old, new = token(rsa_key("one")), token(ec_key("new"), "new", "ES256")
    assert await jwt.identity(asked(old)) is not None
    keys_file.with_suffix(".next").write_text(jwks(public(ec_key("new"), "new")))
    keys_file.with_suffix(".next").replace(keys_file)

    async def taken() -> bool:
        try:
            return await jwt.identity(asked(new)) is not None
        except Unauthenticated:
            return False

    await eventually_async(taken, "the new key")
    assert "not known here" in await why_not(jwt, old)


async def test_a_file_that_becomes_wrong_leaves_the_last_keys(
    jwt: Jwt, keys_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys_file.write_text("{")

    async def told() -> bool:
        assert await jwt.identity(asked(token(rsa_key("one")))) is not None
        return "the last one that was right goes on" in caplog.text

    await eventually_async(told, "a line in the log")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"keys": 7}',
        jwks(),
        jwks({"kty": "oct", "k": "c2VjcmV0", "kid": "one"}),
        jwks({"kty": "oct", "k": "c2VjcmV0", "kid": "one", "crv": "P-256"}),
        jwks(public(rsa_key("weak", 1024), "one")),
        jwks(public(rsa_key("one"), "one", use="enc")),
        jwks(public(rsa_key("one"), "one", key_ops=["encrypt"])),
        jwks(public(rsa_key("one"), "one", alg="HS256")),
        jwks(public(rsa_key("one"), "one", alg="none")),
        jwks(public(ec_key("k", ec.SECP256K1), "one")),
    ],
)
def test_keys_that_prove_nothing_are_no_keys(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_jwks(text)


class Fetching:
    """Keys of a provider, with the time in hand."""

    def __init__(self, provider: Provider) -> None:
        self.clock = ManualClock()
        self.provider = provider
        self.keys = KeysAtAddress(provider.url, clock=self.clock)

    async def finds(self, kid: str) -> bool:
        return await self.keys.find(kid) is not None


async def test_keys_are_fetched_once_and_again_after_ten_minutes() -> None:
    with provider() as there:
        there.serves(jwks(public(ec_key("a"), "a")))
        at = Fetching(there)
        assert [await at.finds("a") for _ in range(5)] == [True] * 5
        assert (there.asked, at.keys.generation) == (1, 1)
        at.clock.advance(FRESH_MS + 1)
        assert await at.finds("a")

        async def again() -> bool:
            return there.asked == 2 and at.keys._running is None

        await eventually_async(again, "the second fetch")
        assert at.keys.generation == 1  # the same keys: what was verified stays so


async def test_an_unknown_key_is_looked_for_at_once_but_not_by_a_flood() -> None:
    with provider() as there:
        there.serves(jwks(public(ec_key("a"), "a")))
        at = Fetching(there)
        assert await at.finds("a")
        at.clock.advance(LEAST_BETWEEN_MS)
        there.serves(jwks(public(ec_key("b"), "b"), public(ec_key("a"), "a")))
        assert await at.finds("b")  # rotated a moment ago
        assert there.asked == 2
        assert not any([await at.finds(f"unknown-{number}") for number in range(50)])
        assert there.asked == 2
        at.clock.advance(LEAST_BETWEEN_MS)
        assert not any([await at.finds(f"unknown-{number}") for number in range(50)])
        assert there.asked == 3


async def test_when_the_provider_dies_the_last_keys_are_good_for_a_day(caplog: pytest.LogCaptureFixture) -> None:
    with provider() as there:
        there.serves(jwks(public(ec_key("a"), "a")))
        at = Fetching(there)
        assert await at.finds("a")
    at.clock.advance(DAY_MS - 1)
    assert await at.finds("a")

    async def logged() -> bool:
        return "could not be fetched" in caplog.text

    await eventually_async(logged, "a line in the log")
    at.clock.advance(LEAST_BETWEEN_MS)
    with pytest.raises(Unauthenticated, match="could not be fetched"):
        await at.finds("a")


async def test_a_provider_that_comes_back_is_found() -> None:
    with provider() as there:
        at = Fetching(there)
        with pytest.raises(Unauthenticated):
            await at.finds("a")
        there.serves(jwks(public(ec_key("a"), "a")))
        with pytest.raises(Unauthenticated):
            await at.finds("a")  # not so soon
        at.clock.advance(LEAST_BETWEEN_MS)
        assert await at.finds("a")


@pytest.mark.parametrize("at_once", [b"", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["head", "body"])
async def test_a_fetch_ends_though_the_provider_sends_a_byte_now_and_then(
    at_once: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no other fetch would ever begin."""
    monkeypatch.setattr("tallystick.broker.access.jwks.FETCH_SECONDS", 0.5)
    with dribbling_server(at_once, b"HTTP/1.1 200 OK\r\n" + b"X-A: a\r\n" * 1_000) as url:
        keys = KeysAtAddress(f"{url}/jwks")
        with pytest.raises(Unauthenticated, match="could not be fetched"):
            await keys.find("a")

        async def ended() -> bool:
            return keys._running is None

        await eventually_async(ended, "the end of the fetch")


@pytest.mark.parametrize(
    ("status", "text", "headers"),
    [
        (302, "", {"Location": "http://127.0.0.2:9/jwks"}),
        (302, "", {"Location": "file:///etc/passwd"}),
        (404, jwks(public(ec_key("a"), "a")), {}),
        (200, "<html>", {}),
        (200, "x" * 2_000_000, {}),
    ],
)
async def test_whatever_is_no_key_set_is_not_taken(status: int, text: str, headers: dict[str, str]) -> None:
    with provider() as there:
        there.serves(text, status, **headers)
        with pytest.raises(Unauthenticated, match="could not be fetched"):
            await Fetching(there).finds("a")


async def test_a_redirect_within_the_host_is_followed() -> None:
    with provider() as there:
        keys = jwks(public(ec_key("a"), "a"))

        def answer(handler: Any) -> None:
            there.serves(keys)
            handler.send_response(302)
            handler.send_header("Location", "/elsewhere")
            handler.end_headers()

        there.answer = answer
        assert await Fetching(there).finds("a")


async def test_a_token_is_verified_with_keys_of_an_address_that_rotates() -> None:
    with provider() as there:
        there.serves(jwks(public(ec_key("a"), "a")))
        clock = ManualClock(int(time.time() * 1000))
        jwt = jwt_way(settings(there.url), clock=clock)
        assert jwt is not None
        old, new = token(ec_key("a"), "a", "ES256"), token(ec_key("b"), "b", "ES256")
        assert await jwt.identity(asked(old)) is not None
        there.serves(jwks(public(ec_key("b"), "b")))
        clock.advance(LEAST_BETWEEN_MS)
        assert await jwt.identity(asked(new)) is not None
        # Its key is gone: what was verified a moment ago counts no longer.
        assert "not known here" in await why_not(jwt, old)


async def test_over_https_the_provider_must_be_who_its_certificate_says(tmp_path: Path) -> None:
    """On the word of the file that is named, and of nobody else."""
    pem = self_signed(tmp_path / "id.pem", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with provider(context) as there:
        there.serves(jwks(public(ec_key("a"), "a")))
        assert there.url.startswith("https://")
        with pytest.raises(Unauthenticated, match="could not be fetched"):
            await Fetching(there).finds("a")
        assert await KeysAtAddress(there.url, str(pem)).find("a") is not None


async def test_whom_brokers_believe_and_whom_the_provider_is_believed_are_two_settings(tmp_path: Path) -> None:
    ours, theirs = (self_signed(tmp_path / f"{name}.pem", "127.0.0.1") for name in ("brokers", "provider"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(theirs)
    text = token(ec_key("a"), "a", "ES256")
    with provider(context) as there:
        there.serves(jwks(public(ec_key("a"), "a")))
        jwt = jwt_way(settings(there.url, tls_ca=str(ours), jwt_ca=str(theirs)))
        assert await jwt.identity(asked(text)) is not None
        only_ours = jwt_way(settings(there.url, tls_ca=str(theirs)))
        assert "could not be fetched" in await why_not(only_ours, text)


async def test_a_file_of_those_who_are_trusted_is_read_again_with_the_next_fetch(tmp_path: Path) -> None:
    wrong, right = (self_signed(tmp_path / f"{name}.pem", "127.0.0.1") for name in ("wrong", "right"))
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(wrong.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(right)
    clock = ManualClock()
    with provider(context) as there:
        there.serves(jwks(public(ec_key("a"), "a")))
        keys = KeysAtAddress(there.url, str(trusted), clock)
        with pytest.raises(Unauthenticated):
            await keys.find("a")
        trusted.write_bytes(right.read_bytes())
        clock.advance(LEAST_BETWEEN_MS)
        assert await keys.find("a") is not None


def test_a_file_of_those_who_are_trusted_must_have_some(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for file in (empty, tmp_path / "none.pem"):
        with pytest.raises(ConfigError) as refused:
            jwt_way(settings("https://id.example/jwks", jwt_ca=str(file)))
        assert refused.value.field == "jwt_ca"
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path / "jwks.json", jwt_ca=str(empty))
    assert refused.value.field == "jwt_ca"
