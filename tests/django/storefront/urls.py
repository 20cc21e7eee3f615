from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from storefront import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("tallystick/", include("tallystick.django.urls")),
    path("order/<topic>/<note>", views.order),
    path("order-at-once/<topic>/<note>", views.order_at_once),
    path("order-and-fail/<topic>/<note>", views.order_and_fail),
    path("order-async/<topic>/<note>", views.order_async),
    path("order-wrongly-async/<topic>/<note>", views.order_wrongly_async),
    path("called/<note>", views.called),
]
