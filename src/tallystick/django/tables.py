"""The migration that creates the tables, by their documented definitions (`tallystick/barrier/sql`)."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from tallystick.barrier.adapters.recognition import adapt_sync
from tallystick.barrier.operations.identity import give_identity_here
from tallystick.barrier.operations.tables import table_definitions
from tallystick.barrier.runner import run_sync


class CreateTables(Operation):
    """Creates the tables that are missing; those that exist are left as they are.

    Its reverse does nothing. The barrier knows what became of transactions that a broker may still ask for: who is
    sure that nobody will ask drops the tables by hand.
    """

    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """The models of the tables are unmanaged."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if not router.allow_migrate(connection.alias, app_label):
            return
        adapter = adapt_sync(connection)
        for definition in table_definitions(adapter.dialect.name):
            schema_editor.execute(definition, params=None)
        if not schema_editor.collect_sql:
            run_sync(adapter, give_identity_here())

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """The tables stay."""

    def describe(self) -> str:
        return "Create Tallystick's tables where they are missing"
