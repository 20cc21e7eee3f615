"""JWTs of an identity provider: who is believed, and who is not. Real keys, a real server of keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt as pyjwt
import pytest
from cryptography.hazmat.primitives import serialization
from identity_provider import (
    AUDIENCE,
    ISSUER,
    asked,
    ec_key,
    ed_key,
    jwks,
    public,
    rsa_key,
    settings,
    token,
    why_not,
)

from tallystick.broker.access import jwt as way
from tallystick.broker.access.identities import Identities
from tallystick.broker.access.jwt import LONGEST_TOKEN, Jwt, jwt_way
from tallystick.broker.config import load_config
from tallystick.core.access import Evidence, Grant, Identity
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


# --- who somebody is -------------------------------------------------------------------------------------------------


async def test_a_jwt_is_an_identity_with_all_the_grants_that_its_claims_give(jwt: Jwt) -> None:
    text = token(
        rsa_key("one"),
        scope="openid orders:write",
        realm_access={"roles": ["ops", 7]},
        **{"https://shop.example/team": "tea"},
    )
    found = await jwt.identity(asked(text))
    assert isinstance(found, Identity)
    assert (found.name, found.kind) == ("alice", "jwt")
    assert found.grants == (
        Grant(("producer",), topics=("orders.*",)),
        Grant(("operator",)),
        Grant(("consumer",), groups=("tea-*",)),
    )
    assert found.expires_at == pyjwt.decode(text, options={"verify_signature": False})["exp"] * 1000


async def test_of_several_rules_the_largest_limits_count(keys_file: Path) -> None:
    def rule(value: str, **limits: int) -> dict[str, Any]:
        return {"claim": "scope", "value": value, "roles": ["reader"], **limits}

    rules = [rule("a", max_in_flight=5, bytes_per_second=100), rule("b", max_in_flight=9), rule("c")]
    jwt = jwt_way(settings(keys_file, jwt_grants=rules))
    for scope, limits in (("a", (5, 100)), ("a b", (9, 0)), ("a b c", (0, 0)), ("none", (0, 0))):
        found = await jwt.identity(asked(token(rsa_key("one"), scope=scope)))
        assert found is not None
        assert (found.limits.max_in_flight, found.limits.bytes_per_second) == limits


async def test_claims_that_no_rule_names_give_nothing(jwt: Jwt) -> None:
    for claims in ({"scope": "orders:writers"}, {"scope": 7}, {"realm_access": "ops"}, {"realm_access": {"roles": {}}}):
        found = await jwt.identity(asked(token(rsa_key("one"), **claims)))
        assert found is not None
        assert found.grants == ()


@pytest.mark.parametrize(
    ("key", "kid", "algorithm"),
    [
        (rsa_key("one"), "one", "RS256"),
        (rsa_key("one"), "one", "RS512"),
        (rsa_key("one"), "one", "PS256"),
        (ec_key("two"), "two", "ES256"),
        (ed_key("three"), "three", "EdDSA"),
    ],
)
async def test_each_asymmetric_algorithm_is_taken(jwt: Jwt, key: Any, kid: str, algorithm: str) -> None:
    found = await jwt.identity(asked(token(key, kid, algorithm)))
    assert found is not None
    assert found.name == "alice"


@pytest.mark.parametrize(
    "authorization", ["", "Basic YTpi", "Bearer tally_abc_def", "Bearer tally_a.b.c", "Bearer a.b", "Bearer a.b.c.d"]
)
async def test_what_has_another_form_is_left_to_other_ways(jwt: Jwt, authorization: str) -> None:
    assert await jwt.identity(Evidence(authorization)) is None


async def test_it_is_one_way_among_others(jwt: Jwt) -> None:
    identities = Identities([jwt], [])
    assert (await identities.find(asked(token(rsa_key("one"))))).name == "alice"
    with pytest.raises(Unauthenticated):
        await identities.find(asked("tally_abc_def"))


async def test_another_claim_may_be_the_name(keys_file: Path) -> None:
    jwt = jwt_way(settings(keys_file, jwt_name_claim="azp.name"))
    assert jwt is not None
    found = await jwt.identity(asked(token(rsa_key("one"), azp={"name": "shop-service"})))
    assert found is not None
    assert found.name == "shop-service"
    assert "claim azp.name" in await why_not(jwt, token(rsa_key("one")))


@pytest.mark.parametrize("name", ["", None, "a\nb", "x" * 257])
async def test_a_name_that_is_none_is_refused(keys_file: Path, name: Any) -> None:
    jwt = jwt_way(settings(keys_file, jwt_name_claim="email"))
    assert jwt is not None
    assert "no name in its claim email" in await why_not(jwt, token(rsa_key("one"), email=name))


# --- who is not believed ---------------------------------------------------------------------------------------------


def soon(seconds: int) -> int:
    return int(time.time()) + seconds


class Soon(int):
    """So many seconds from when the test runs, which may be long after it was collected."""


def at_once(claims: dict[str, Any]) -> dict[str, Any]:
    return {name: soon(value) if isinstance(value, Soon) else value for name, value in claims.items()}


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": Soon(-60)}, "has expired 6"),
        ({"exp": None}, "has no claim exp"),
        ({"exp": "tomorrow"}, "malformed"),
        ({"nbf": Soon(600)}, "not valid yet"),
        ({"iat": Soon(600)}, "not valid yet"),
        ({"iss": "https://elsewhere.example"}, "another issuer"),
        ({"iss": None}, "has no claim iss"),
        ({"aud": "another-service"}, "audience"),
        ({"aud": ["a", "b"]}, "audience"),
        ({"aud": None}, "has no claim aud"),
    ],
)
async def test_claims_that_are_wrong_are_refused(jwt: Jwt, claims: dict[str, Any], why: str) -> None:
    assert why in await why_not(jwt, token(rsa_key("one"), **at_once(claims)))


@pytest.mark.parametrize("claims", [{"exp": Soon(-5)}, {"nbf": Soon(5)}, {"aud": ["other", AUDIENCE]}])
async def test_clocks_may_differ_a_little_and_others_be_meant_as_well(jwt: Jwt, claims: dict[str, Any]) -> None:
    assert await jwt.identity(asked(token(rsa_key("one"), **at_once(claims)))) is not None


async def test_a_key_of_somebody_else_is_refused(jwt: Jwt) -> None:
    assert "not signed with the key" in await why_not(jwt, token(rsa_key("stranger"), "one"))


async def test_the_name_of_another_key_is_refused(jwt: Jwt) -> None:
    assert "algorithm is not one of its key's: ES256" in await why_not(jwt, token(rsa_key("one"), "two"))


async def test_a_key_that_nobody_knows_is_refused(jwt: Jwt) -> None:
    assert "key that is not known here" in await why_not(jwt, token(rsa_key("one"), "four"))


async def test_a_token_without_a_key_is_taken_only_if_there_is_one_key(jwt: Jwt, tmp_path: Path) -> None:
    text = token(rsa_key("one"), None)
    assert "names no key (kid), and there are several" in await why_not(jwt, text)
    (tmp_path / "one.json").write_text(jwks(public(rsa_key("one"), None)))
    single = jwt_way(settings(tmp_path / "one.json"))
    assert single is not None
    assert await single.identity(asked(text)) is not None


def forged(algorithm: str, secret: bytes, kid: str = "one") -> str:
    """Signed with HMAC by somebody who knows only what is public."""
    claims = pyjwt.decode(token(rsa_key("one")), options={"verify_signature": False})
    parts = [
        _coded(json.dumps({"alg": algorithm, "kid": kid, "typ": "JWT"}).encode()),
        _coded(json.dumps(claims).encode()),
    ]
    signature = hmac.new(secret, ".".join(parts).encode(), hashlib.sha256).digest() if secret else b""
    return ".".join([*parts, _coded(signature)])


def _coded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


async def test_the_public_key_is_no_secret_to_sign_with(jwt: Jwt, keys_file: Path) -> None:
    pem = (
        rsa_key("one")
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    for secret in (pem, pem.strip(), keys_file.read_bytes()):
        assert "algorithm is not one of its key's" in await why_not(jwt, forged("HS256", secret))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", "HS512", "RS1", "ES256K"])
async def test_no_algorithm_that_proves_nothing_is_taken(jwt: Jwt, algorithm: str) -> None:
    assert "algorithm" in await why_not(jwt, forged(algorithm, b""))


async def test_a_key_that_says_what_it_is_for_is_for_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(jwks(public(rsa_key("one"), "one", alg="RS256")))
    jwt = jwt_way(settings(tmp_path / "keys.json"))
    assert jwt is not None
    assert await jwt.identity(asked(token(rsa_key("one")))) is not None
    assert "its key's: RS256" in await why_not(jwt, token(rsa_key("one"), algorithm="PS256"))


async def test_a_huge_token_is_refused_before_it_is_looked_at(jwt: Jwt) -> None:
    text = token(rsa_key("one"), padding="x" * LONGEST_TOKEN)
    assert "more than 8192 characters" in await why_not(jwt, text)


@pytest.mark.parametrize(
    "text", ["..", "a.b.c", "e30.e30.", f"{_coded(b'[]')}.e30.x", "\udcff.a.b".encode("utf-8", "replace").decode()]
)
async def test_what_only_looks_like_a_jwt_is_refused(jwt: Jwt, text: str) -> None:
    with pytest.raises(Unauthenticated):
        await jwt.identity(asked(text))


@pytest.mark.parametrize("header", [{"crit": ["x"], "x": 1}, {"crit": ["b64"], "b64": True}])
async def test_extensions_that_must_be_known_are_refused(jwt: Jwt, header: dict[str, Any]) -> None:
    now = int(time.time())
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": now + 600}
    text = pyjwt.encode(claims, rsa_key("one"), "RS256", headers={"kid": "one", **header})
    assert "the JWT" in await why_not(jwt, text)


# --- what was verified is remembered, for a while -------------------------------------------------------------------


async def test_a_token_is_verified_once_in_a_while(keys_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(int(time.time() * 1000))
    jwt = jwt_way(settings(keys_file), clock=clock)
    assert jwt is not None
    verified = []
    real = way.jwt.decode
    monkeypatch.setattr(way.jwt, "decode", lambda *given, **more: verified.append(1) or real(*given, **more))
    text = token(rsa_key("one"))
    for _ in range(5):
        await jwt.identity(asked(text))
    assert len(verified) == 1
    clock.advance(way.REMEMBERED_MS)
    await jwt.identity(asked(text))
    assert len(verified) == 2


async def test_a_token_is_forgotten_when_it_expires(keys_file: Path) -> None:
    clock = ManualClock(int(time.time() * 1000))
    jwt = jwt_way(settings(keys_file), clock=clock)
    assert jwt is not None
    text = token(rsa_key("one"), exp=soon(-10))  # within the leeway
    await jwt.identity(asked(text))
    assert jwt._remembered(hashlib.sha256(text.encode()).digest()) is None


async def test_no_more_tokens_are_remembered_than_the_most(jwt: Jwt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "REMEMBERED", 3)
    for number in range(6):
        await jwt.identity(asked(token(ed_key("three"), "three", "EdDSA", sub=f"user-{number}")))
    assert len(jwt._known) == 3


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"jwt_issuer": ""}, "jwt_issuer"),
        ({"jwt_audience": ""}, "jwt_audience"),
        ({"jwt_jwks": ""}, "jwt_jwks"),
        ({"jwt_grants": []}, "jwt_grants"),
        ({"jwt_grants": "[{]"}, "jwt_grants"),
        ({"jwt_grants": [{"claim": "scope", "value": "x"}]}, "jwt_grants"),
        ({"jwt_grants": [{"claim": "scope", "value": "x", "roles": ["king"]}]}, "jwt_grants"),
        ({"jwt_jwks": "http://id.example/jwks"}, "jwt_jwks"),
        ({"jwt_jwks": "ftp://id.example/jwks"}, "jwt_jwks"),
        ({"jwt_jwks": "http://127.0.0.1.example/jwks"}, "jwt_jwks"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings("https://id.example/jwks", **given)
    assert refused.value.field == field


def test_grants_come_from_a_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        'auth = "tokens"\njwt_issuer = "i"\njwt_audience = "a"\njwt_jwks = "/keys"\n'
        '[[jwt_grants]]\nclaim = "scope"\nvalue = "w"\nroles = ["producer"]\n'
    )
    assert [one.grant for one in load_config(path, environ={}).jwt_grants] == [Grant(("producer",))]
    text = '[{"claim": "scope", "value": "w", "roles": ["producer"]}]'
    with pytest.raises(ConfigError, match="which only a file can hold"):
        load_config(path, environ={"TALLYSTICK_JWT_GRANTS": text})
