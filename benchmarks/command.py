"""Benchmarks: rates beside a bare fdatasync loop of the same run, with the targets we set ourselves."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.run import Section


def main(
    arguments: Sequence[str],
    more: Mapping[str, Section] | None = None,
    parts: Mapping[str, Section] | None = None,
) -> int:
    """`tallystick bench`, with more sections if there are any, and `parts` of these that can be named alone. Figures
    never make it fail: a busy machine is not a defect."""
    from rich.console import Console

    from benchmarks.run import SECTIONS, run

    everything = {**SECTIONS, **(more or {})}
    sections = {**everything, **(parts or {})}
    parser = argparse.ArgumentParser(prog="tallystick bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="section", help=f"{', '.join(sections)}; all by default")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full size, for a quick look: 0.05")
    parser.add_argument(
        "--postgresql",
        metavar="DSN",
        help="a database to measure blocks on as well (make bench has one)",
    )
    parser.add_argument("--json", action="store_true", help="the figures as JSON on standard output")
    given = parser.parse_args(list(arguments))
    unknown = sorted(set(given.sections) - set(sections))
    if unknown:
        parser.error(f"no section {unknown[0]!r}; there are {', '.join(sections)}")
    chosen = {name: sections[name] for name in given.sections} or everything
    report = run(chosen, given.scale, given.postgresql, Console(stderr=given.json))
    if given.json:
        print(report.as_json())
    return 0
