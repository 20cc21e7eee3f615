"""Tallystick's tables as models, to be looked at (in the admin, in a shell) and never changed.

They are unmanaged: a migration creates the tables by their documented definitions. Four of the tables have a key of
several columns, for which Django's admin has no page; their models name one of these as the primary key, which alone is
not unique. So they are for lists, not for `get(pk=...)`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.db import models

from tallystick.barrier.names import (
    BARRIER_TABLE,
    DIGEST_TABLE,
    INBOX_TABLE,
    OFFSET_TABLE,
    OUTBOX_TABLE,
    PREPARED_TABLE,
)


class Looked(models.Model):
    """A row that only Tallystick writes."""

    class Meta:
        abstract = True

    def save(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"rows of {self._meta.db_table} are written by Tallystick alone")

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"rows of {self._meta.db_table} are deleted by manage.py tallystick_clean alone")


class BarrierEntry(Looked):
    """The outcome of a transaction: reason `msg` is committed, `rollback` rolled back."""

    id = models.BigIntegerField(primary_key=True)
    trans_type = models.CharField(max_length=45)
    gid = models.CharField(max_length=128)
    branch_id = models.CharField(max_length=128)
    op = models.CharField(max_length=45)
    barrier_id = models.CharField(max_length=45)
    reason = models.CharField(max_length=45)
    create_time = models.DateTimeField()
    update_time = models.DateTimeField()

    class Meta:
        managed = False
        db_table = BARRIER_TABLE
        verbose_name = "barrier row"

    def __str__(self) -> str:
        return f"{self.gid} {self.branch_id} {self.op}"


class OutboxEntry(Looked):
    """Messages that are committed here and not yet confirmed by their broker."""

    gid = models.CharField(max_length=128, primary_key=True)
    broker = models.CharField(max_length=255)
    payload = models.BinaryField()
    state = models.CharField(max_length=16)
    attempts = models.IntegerField()
    created_at = models.DateTimeField()
    touched_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = OUTBOX_TABLE
        verbose_name = "outbox row"

    def __str__(self) -> str:
        return str(self.gid)


class InboxEntry(Looked):
    """A message whose effect a consumer group has applied."""

    consumer_group = models.CharField(max_length=128)
    message_id = models.CharField(max_length=255, primary_key=True)
    created_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = INBOX_TABLE
        verbose_name = "inbox row"


class OffsetEntry(Looked):
    """A consumer group's place in a queue."""

    consumer_group = models.CharField(max_length=128, primary_key=True)
    store = models.CharField(max_length=128)
    topic = models.CharField(max_length=128)
    queue = models.IntegerField()
    next_offset = models.BigIntegerField()
    updated_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = OFFSET_TABLE
        verbose_name = "offset"


class PreparedEntry(Looked):
    """A message that reached a consumer group before its outcome."""

    consumer_group = models.CharField(max_length=128)
    gid = models.CharField(max_length=128, primary_key=True)
    payload = models.BinaryField()
    created_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = PREPARED_TABLE
        verbose_name = "prepared message"


class DigestEntry(Looked):
    """The SHA-256 of a value that a consumer group has applied."""

    consumer_group = models.CharField(max_length=128)
    message_id = models.CharField(max_length=255, primary_key=True)
    digest = models.CharField(max_length=64)
    created_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = DIGEST_TABLE
        verbose_name = "digest"
