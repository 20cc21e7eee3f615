"""The documented tables of each kind of server: `sql/<server>.sql`."""

from __future__ import annotations

from importlib.resources import files


def table_statements(server: str) -> tuple[str, ...]:
    """The statements that make the tables, without their comments."""
    text = files("tallystick.store.shared").joinpath("sql", f"{server}.sql").read_text(encoding="utf-8")
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return tuple(part.strip() for part in code.split(";") if part.strip())
