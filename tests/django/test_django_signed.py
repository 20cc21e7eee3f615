"""The check-back view and `called_once` with a verifier: a broker's request passes once, nobody else's at all."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.test import AsyncClient, Client, override_settings
from django_support import Shop
from storefront.models import Order

from tallystick import Verifier
from tallystick.core.clock import SystemClock
from tallystick.core.ids import new_nonce
from tallystick.core.signing import SIGNATURE_HEADER, SigningKey, sign
from tallystick.django import conf
from tallystick.django.models import BarrierEntry

KEY = SigningKey("a", "s" * 40)
HOST = "shop.internal:8080"
VERIFIER = Verifier({"a": "s" * 40})


def signed(method: str, path: str, body: bytes = b"") -> dict[str, str]:
    return {SIGNATURE_HEADER: sign(KEY, method, HOST, path, SystemClock().now_ms(), new_nonce(), body)}


@pytest.fixture
def verified(shop: Shop, settings_of_tallystick: dict[str, Any]) -> Any:
    with override_settings(TALLYSTICK={**settings_of_tallystick, "VERIFIER": "test_django_signed.VERIFIER"}):
        yield shop


@pytest.fixture
def settings_of_tallystick() -> dict[str, Any]:
    return conf.given()


@pytest.fixture
def topic(shop: Shop) -> str:
    return shop.new_name()


@pytest.mark.usefixtures("verified")
def test_a_check_back_is_answered_to_a_broker_alone(topic: str) -> None:
    path = f"/tallystick/check?gid={topic}"
    refused = Client().get(path)
    assert (refused.status_code, refused["Content-Type"]) == (401, "application/problem+json")
    assert not BarrierEntry.objects.filter(gid=topic).exists()
    headers = signed("GET", path)
    assert Client().get(path, headers=headers).json()["outcome"] == "rolled_back"
    assert Client().get(path, headers=headers).status_code == 401


@pytest.mark.usefixtures("verified")
async def test_the_same_under_asgi(topic: str) -> None:
    path = f"/tallystick/check?gid={topic}"
    assert (await AsyncClient().get(path)).status_code == 401
    answer = await AsyncClient().get(path, headers=signed("GET", path))
    assert answer.json()["outcome"] == "rolled_back"


@pytest.mark.usefixtures("verified")
def test_a_call_is_taken_from_a_broker_alone(topic: str) -> None:
    path = f"/called/{topic}?trans_type=msg&gid={topic}&branch_id=01&op=action"

    def call(body: bytes, headers: dict[str, str]) -> int:
        client = Client(enforce_csrf_checks=True)
        return client.post(path, body, content_type="application/json", headers=headers).status_code

    right = signed("POST", path, b"{}")
    assert [call(b"{}", {}), call(b"[]", right)] == [401, 401]
    assert not BarrierEntry.objects.filter(gid=topic).exists()
    assert [call(b"{}", right), call(b"{}", right)] == [200, 401]
    assert call(b"{}", signed("POST", path, b"{}")) == 200  # the broker's own repetition: answered, and not done again
    assert Order.objects.filter(note=topic).count() == 1


def test_what_is_no_verifier_is_told(shop: Shop, settings_of_tallystick: dict[str, Any]) -> None:
    with override_settings(TALLYSTICK={**settings_of_tallystick, "VERIFIER": "test_django_signed.KEY"}):
        with pytest.raises(ImproperlyConfigured, match=r"VERIFIER.*not SigningKey"):
            conf.verifier()
        with pytest.raises(SystemCheckError, match="VERIFIER"):
            call_command("check", "--tag", "tallystick")
