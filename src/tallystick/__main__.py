"""The command `tallystick`, also as `python -m tallystick`: the command line, or what to install for it."""

from __future__ import annotations

import sys

import tallystick
from tallystick.extras import ExtraMissing, need

USAGE = 2
# Commands that need more than the command line; that comes along with what they need.
_NEEDS = {"serve": "server", "demo": "server", "bench": "server", "spark": "spark"}


def main() -> int:
    try:
        try:
            need("cli")
        except ExtraMissing:
            if sys.argv[1:] == ["--version"]:
                sys.stdout.write(f"{tallystick.__version__}\n")
                return 0
            for command, extra in _NEEDS.items():
                if command in sys.argv[1:]:
                    need(extra)
            raise
        from tallystick.cli import main as run

        return run()
    except ExtraMissing as error:
        sys.stderr.write(f"tallystick: {error}\n")
        return USAGE


if __name__ == "__main__":
    sys.exit(main())
