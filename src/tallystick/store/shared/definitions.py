"""The documented tables of each kind of server: `sql/<server>.sql`."""

from __future__ import annotations

import re
from importlib.resources import files

_STATEMENT = re.compile(r"(?:\$\$.*?\$\$|[^;])+", re.DOTALL)  # a body between $$ has semicolons


def table_file(server: str) -> str:
    return files("tallystick.store.shared").joinpath("sql", f"{server}.sql").read_text(encoding="utf-8")


def table_statements(server: str) -> tuple[str, ...]:
    """The statements that make the tables, without their comments."""
    code = "\n".join(line for line in table_file(server).splitlines() if not line.startswith("--"))
    return tuple(part.strip() for part in _STATEMENT.findall(code) if part.strip())


def table_names(server: str) -> tuple[str, ...]:
    """What those statements make."""
    return tuple(re.findall(r"create table if not exists (\w+)", ";".join(table_statements(server))))


def triggers(server: str) -> tuple[tuple[str, str], ...]:
    """The triggers that those statements make, each with its table."""
    return tuple(re.findall(r"create trigger (\w+) before update on (\w+)", ";".join(table_statements(server))))
