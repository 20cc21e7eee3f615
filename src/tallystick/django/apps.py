"""The app: its tables (migrations), its checks, its commands, its admin pages."""

from __future__ import annotations

from django.apps import AppConfig


class TallystickConfig(AppConfig):
    name = "tallystick.django"
    label = "tallystick"
    verbose_name = "Tallystick"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from tallystick.django import checks  # noqa: F401 (they are registered by their import)
