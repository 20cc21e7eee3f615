"""`path("tallystick/", include("tallystick.django.urls"))`: check-backs are answered at `tallystick/check`."""

from __future__ import annotations

from django.urls import path

from tallystick.django.views import check

app_name = "tallystick"
urlpatterns = [path("check", check, name="check")]
