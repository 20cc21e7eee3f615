"""Pages on which the tables can be looked at and searched; nothing can be added, changed or deleted there."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import Http404

from tallystick.django.models import BarrierEntry, DigestEntry, InboxEntry, OffsetEntry, OutboxEntry, PreparedEntry


class LookedAdmin(admin.ModelAdmin):
    """A list with search, and a page for each row."""

    actions = None
    show_full_result_count = False  # these tables grow large

    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        if "\0" in object_id:  # PostgreSQL would refuse to look for it
            raise Http404("no key has a null character in it")
        return super().get_object(request, object_id, from_field)

    def has_add_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False


class ListAdmin(LookedAdmin):
    """A list alone: the table has a key of several columns, by which no page of the admin can be found."""

    list_display_links = None

    def get_urls(self) -> list[Any]:
        changelist = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [pattern for pattern in super().get_urls() if pattern.name == changelist]


@admin.register(BarrierEntry)
class BarrierAdmin(LookedAdmin):
    list_display = ("gid", "branch_id", "op", "reason", "create_time")
    list_filter = ("reason",)
    search_fields = ("=gid",)
    ordering = ("-id",)


@admin.register(OutboxEntry)
class OutboxAdmin(LookedAdmin):
    list_display = ("gid", "broker", "state", "attempts", "created_at", "touched_at")
    search_fields = ("=gid",)
    ordering = ("touched_at",)


@admin.register(InboxEntry)
class InboxAdmin(ListAdmin):
    list_display = ("consumer_group", "message_id", "created_at")
    search_fields = ("=consumer_group", "message_id__startswith")
    ordering = ("-created_at",)


@admin.register(OffsetEntry)
class OffsetAdmin(ListAdmin):
    list_display = ("consumer_group", "store", "topic", "queue", "next_offset", "updated_at")
    search_fields = ("=consumer_group", "=topic")
    ordering = ("consumer_group", "topic", "queue")


@admin.register(PreparedEntry)
class PreparedAdmin(ListAdmin):
    list_display = ("consumer_group", "gid", "created_at")
    search_fields = ("=consumer_group", "=gid")
    ordering = ("-created_at",)


@admin.register(DigestEntry)
class DigestAdmin(ListAdmin):
    list_display = ("consumer_group", "message_id", "digest", "created_at")
    search_fields = ("=consumer_group", "message_id__startswith")
    ordering = ("-created_at",)
