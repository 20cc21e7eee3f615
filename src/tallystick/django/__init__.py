"""Tallystick in Django: `INSTALLED_APPS = [..., "tallystick.django"]`.

from tallystick.django import ts

with ts.transaction() as tx:                  # an atomic() of the ORM
    order = Order.objects.create(item="tea")
    tx.send("orders", {"id": order.pk})
"""

from tallystick.extras import need

try:
    from tallystick.django.calls import called_once
    from tallystick.django.service import ts
except ModuleNotFoundError:
    need("django")
    raise

__all__ = ["called_once", "ts"]
