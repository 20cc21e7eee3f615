"""Runs the blocks of one page, in a process of its own: `python doc_session.py < blocks.json`.

Python blocks share one namespace and shell blocks one shell, as they would for a reader who types them in. The
first block that fails, or prints something else than the page says, ends the run with its place and its output.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any


class Shell:
    """One bash for all shell blocks of a page; what it starts in the background ends with it."""

    def __init__(self) -> None:
        self._count = 0
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, text: str) -> str:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._count += 1
        Path(".block.sh").write_text(text)
        printed = Path(f".block-{self._count}.out")
        # From a file, so that a command that reads input does not eat the rest; into a file of the block's own,
        # because a process that is left running would keep a pipe open for ever, and writes whenever it likes.
        self._bash.stdin.write(f"set -e; . ./.block.sh </dev/null >{printed} 2>&1; set +e; echo done\n")
        self._bash.stdin.flush()
        if self._bash.stdout.readline() != "done\n":
            raise RuntimeError(f"a command failed (exit code {self._bash.wait()}); it printed:\n{printed.read_text()}")
        return printed.read_text()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        for pipe in (self._bash.stdin, self._bash.stdout):
            if pipe is not None:
                pipe.close()
        self._bash.wait()


class Session:
    def __init__(self, page: str) -> None:
        self._page = page
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._shell: Shell | None = None

    def run(self, block: dict[str, Any]) -> str:
        if block["language"] == "sh":
            self._shell = self._shell or Shell()
            return self._shell.run(block["text"])
        if block["file"]:
            Path(block["file"]).write_text(block["text"])
            return ""
        return self._run_python(block["text"], block["line"])

    def _run_python(self, text: str, line: int) -> str:
        tree = ast.increment_lineno(ast.parse(text), line - 1)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, self._page, "exec", dont_inherit=True), self._namespace)
        return printed.getvalue()

    def close(self) -> None:
        if self._shell is not None:
            self._shell.close()


def differs(expected: str, got: str) -> str:
    """What is wrong with an output, or nothing."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if doctest.OutputChecker().check_output(expected, got, flags):
        return ""
    return f"the page says:\n{expected}\nbut it printed:\n{got}"


def main() -> int:
    given = json.load(sys.stdin)
    sys.path[0] = ""  # what a page has written to a file can be imported, as by an interpreter that was started there
    session = Session(given["page"])
    try:
        return _run_all(session, given["page"], given["blocks"])
    finally:
        session.close()


def _run_all(session: Session, page: str, blocks: list[dict[str, Any]]) -> int:
    printed = ""
    for block in blocks:
        place = f"{page}:{block['line']}"
        if block["output"]:
            problem = differs(block["text"], printed)
            if problem:
                print(f"{place}: {problem}", file=sys.stderr)
                return 1
            continue
        try:
            printed = session.run(block)
        except (Exception, SystemExit):
            print(f"{place}: this block failed", file=sys.stderr)
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
