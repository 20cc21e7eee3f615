"""`manage.py tallystick_clean`: delete old rows that no broker can ask for any more."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from tallystick.core.errors import TallystickError
from tallystick.django.service import ts

_DAY = 24 * 3600.0


class CleanCommand(BaseCommand):
    help = (
        "Deletes barrier, inbox, prepared and digest rows that are old enough and that no broker can ask for any more. "
        "Nothing is deleted if a broker cannot be asked."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--older-than", type=float, default=14.0, metavar="DAYS", help="default: 14 days")
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="the alias; default: default")
        parser.add_argument(
            "--group",
            action="append",
            dest="groups",
            help="a consumer group with an inbox in this database; several may be given; default: all",
        )

    def handle(
        self, *args: Any, older_than: float, database: str, groups: list[str] | None = None, **options: Any
    ) -> None:
        try:
            deleted = ts.clean(database, older_than=older_than * _DAY, groups=groups)
        except TallystickError as failure:
            raise CommandError(str(failure)) from failure
        finally:
            ts.close()
        for kind, count in deleted.items():
            self.stdout.write(f"{kind}: {count} deleted")


Command = CleanCommand
