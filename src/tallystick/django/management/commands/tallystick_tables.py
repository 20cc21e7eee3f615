"""`manage.py tallystick_tables`: the definitions of the tables, for those who run their SQL by hand."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.db import DEFAULT_DB_ALIAS, connections

from tallystick.barrier.adapters.recognition import adapt_sync
from tallystick.barrier.operations.tables import table_definitions


class TablesCommand(BaseCommand):
    help = "Prints the SQL that creates Tallystick's tables; `migrate tallystick` runs the same."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="the alias; default: default")

    def handle(self, *args: Any, database: str, **options: Any) -> None:
        for definition in table_definitions(adapt_sync(connections[database]).dialect.name):
            self.stdout.write(f"{definition};\n")


Command = TablesCommand
