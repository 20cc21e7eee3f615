"""What `pip install tallystick` leaves out: the extras that bring it, and the words for whoever lacks one.

Packages are looked for and not imported. The tables and messages here need nothing but the standard library: they are
what is left to say when everything else is missing.
"""

from __future__ import annotations

from importlib.util import find_spec

# extra -> what it is for, and the modules that its packages bring
EXTRAS = {
    "server": (
        "the broker",
        (
            "cryptography",
            "grpc",
            "grpc_reflection",
            "jwt",
            "prometheus_client",
            "rocksdict",
            "sortedcontainers",
            "uvicorn",
            "uvloop",
        ),
    ),
    "cli": ("the command line", ("rich", "typer")),
    "spark": ("Spark", ("jinja2", "pyarrow", "pyspark", "xxhash")),
    "postgresql": ("the driver for PostgreSQL", ("psycopg",)),
    "mysql": ("the driver for MySQL and MariaDB", ("pymysql",)),
    "redis": ("the driver for Redis", ("redis",)),
    "django": ("Django", ("django",)),
    "fastapi": ("FastAPI", ("fastapi",)),
    "flask": ("Flask", ("flask",)),
}


class ExtraMissing(ModuleNotFoundError):
    """Something needs an extra of Tallystick's that is not installed."""


def lacking(extra: str) -> list[str]:
    """The modules of an extra that are not there."""
    if extra not in EXTRAS:
        raise ValueError(f"extra: {extra!r} is none of {', '.join(EXTRAS)}")
    return [module for module in EXTRAS[extra][1] if find_spec(module) is None]


def need(extra: str) -> None:
    """Raise `ExtraMissing`, which says what to install, unless all of an extra is there."""
    missing = lacking(extra)
    if missing:
        raise ExtraMissing(f"{EXTRAS[extra][0]} is not installed: pip install 'tallystick[{extra}]'", name=missing[0])
