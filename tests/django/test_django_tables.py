"""The tables on every engine: what the migration makes of them, and the pages of the admin."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django_support import Shop

from tallystick.barrier import table_definitions
from tallystick.django import ts
from tallystick.django.models import BarrierEntry

TABLES = ("barrier", "digest", "inbox", "offset", "outbox", "prepared")


def _printed(*command: Any) -> str:
    out = io.StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


def test_the_migration_takes_tables_that_are_there_already(any_shop: Shop) -> None:
    with connection.cursor() as cursor:
        cursor.execute("select reason from tallystick_barrier")
        before = cursor.fetchall()
    call_command("migrate", "tallystick", "zero", verbosity=0)  # its reverse leaves the tables
    call_command("migrate", "tallystick", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("select reason from tallystick_barrier")
        assert cursor.fetchall() == before
    assert {f"tallystick_{name}" for name in TABLES} <= set(connection.introspection.table_names())


def test_the_sql_of_the_migration_can_be_read(any_shop: Shop) -> None:
    for printed in (_printed("sqlmigrate", "tallystick", "0001"), _printed("tallystick_tables")):
        assert all(definition in printed for definition in table_definitions(connection.vendor))


def test_the_tables_can_be_looked_at_in_the_admin(any_shop: Shop) -> None:
    with ts.transaction() as tx:
        tx.send(any_shop.new_name(), "made")
    User.objects.filter(username="boss").delete()
    User.objects.create_superuser("boss", password="of-the-tests")
    client = Client()
    client.login(username="boss", password="of-the-tests")
    for model in ("barrierentry", "outboxentry", "inboxentry", "offsetentry", "preparedentry", "digestentry"):
        page = client.get(f"/admin/tallystick/{model}/?q=storefront")
        assert page.status_code == 200, model
        assert client.get(f"/admin/tallystick/{model}/add/").status_code in (302, 403, 404)
    found = client.get(f"/admin/tallystick/barrierentry/?q={tx.gid}")
    assert tx.gid in found.content.decode()
    row = BarrierEntry.objects.get(gid=tx.gid)
    detail = client.get(f"/admin/tallystick/barrierentry/{row.pk}/change/")
    assert detail.status_code == 200
    for key in ("%00", "a%00b", f"{row.pk}%00"):
        for model in ("barrierentry", "outboxentry"):
            assert client.get(f"/admin/tallystick/{model}/{key}/change/").status_code == 404
    assert client.post(f"/admin/tallystick/barrierentry/{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert client.get("/admin/tallystick/inboxentry/x/change/").status_code == 404
    with pytest.raises(TypeError, match="alone"):
        row.delete()
    with pytest.raises(TypeError, match="alone"):
        row.save()
