"""Tallystick in Django: `INSTALLED_APPS = [..., "tallystick.django"]`.

from tallystick.django import ts

with ts.transaction() as tx:                  # an atomic() of the ORM
    order = Order.objects.create(item="tea")
    tx.send("orders", {"id": order.pk})
"""

from typing import TYPE_CHECKING

from tallystick.extras import need
from tallystick.lazy_names import lazy_names

if TYPE_CHECKING:
    from tallystick.django.calls import called_once
    from tallystick.django.service import ts

need("django")

__all__ = ["called_once", "ts"]

if not TYPE_CHECKING:  # a type checker knows each name from above, and that there is no other
    __getattr__ = lazy_names(
        __name__,
        {
            "calls": ("called_once",),
            "service": ("ts",),
        },
    )
