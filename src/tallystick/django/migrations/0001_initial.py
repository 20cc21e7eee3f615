"""The tables, and the unmanaged models by which they are looked at."""

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation

from tallystick.django.tables import CreateTables


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar[list[Operation]] = [
        CreateTables(),
        migrations.CreateModel(
            name="BarrierEntry",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("trans_type", models.CharField(max_length=45)),
                ("gid", models.CharField(max_length=128)),
                ("branch_id", models.CharField(max_length=128)),
                ("op", models.CharField(max_length=45)),
                ("barrier_id", models.CharField(max_length=45)),
                ("reason", models.CharField(max_length=45)),
                ("create_time", models.DateTimeField()),
                ("update_time", models.DateTimeField()),
            ],
            options={
                "verbose_name": "barrier row",
                "db_table": "tallystick_barrier",
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="DigestEntry",
            fields=[
                ("consumer_group", models.CharField(max_length=128)),
                ("message_id", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("digest", models.CharField(max_length=64)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "digest",
                "db_table": "tallystick_digest",
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="InboxEntry",
            fields=[
                ("consumer_group", models.CharField(max_length=128)),
                ("message_id", models.CharField(max_length=255, primary_key=True, serialize=False)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "inbox row",
                "db_table": "tallystick_inbox",
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="OffsetEntry",
            fields=[
                ("consumer_group", models.CharField(max_length=128, primary_key=True, serialize=False)),
                ("store", models.CharField(max_length=128)),
                ("topic", models.CharField(max_length=128)),
                ("queue", models.IntegerField()),
                ("next_offset", models.BigIntegerField()),
                ("updated_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "offset",
                "db_table": "tallystick_offset",
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="OutboxEntry",
            fields=[
                ("gid", models.CharField(max_length=128, primary_key=True, serialize=False)),
                ("broker", models.CharField(max_length=255)),
                ("payload", models.BinaryField()),
                ("state", models.CharField(max_length=16)),
                ("attempts", models.IntegerField()),
                ("created_at", models.DateTimeField()),
                ("touched_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "outbox row",
                "db_table": "tallystick_outbox",
                "managed": False,
            },
        ),
        migrations.CreateModel(
            name="PreparedEntry",
            fields=[
                ("consumer_group", models.CharField(max_length=128)),
                ("gid", models.CharField(max_length=128, primary_key=True, serialize=False)),
                ("payload", models.BinaryField()),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "verbose_name": "prepared message",
                "db_table": "tallystick_prepared",
                "managed": False,
            },
        ),
    ]
