from __future__ import annotations

from django.apps import AppConfig


class StorefrontConfig(AppConfig):
    name = "storefront"
