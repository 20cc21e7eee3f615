"""Benchmarks: rates beside a bare fdatasync loop of the same run, with the targets we set ourselves."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """`tallystick bench`. Figures never make it fail: a busy machine is not a defect."""
    from rich.console import Console

    from tallystick.bench.run import SECTIONS, run

    parser = argparse.ArgumentParser(prog="tallystick bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="section", help=f"{', '.join(SECTIONS)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size, for a quick look: 0.05")
    parser.add_argument("--postgresql", metavar="DSN", help="a PostgreSQL database to measure blocks on as well")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")
    given = parser.parse_args(list(arguments))
    unknown = sorted(set(given.sections) - set(SECTIONS))
    if unknown:
        parser.error(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    report = run(given.sections, given.scale, given.postgresql, Console(stderr=given.json))
    if given.json:
        print(report.as_json())
    return 0
