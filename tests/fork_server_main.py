"""A process that has imported everything and forks a child for each case it is told of on its standard input.

Starting an interpreter for each of some hundred children would take minutes. A child is a process of its own all the
same: it opens its own connections after the fork, and dies alone. When the standard input ends, so does everybody.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import json
import os
import selectors
import signal
import sys
import time
import traceback
from typing import Any

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
FAILED = 70
"""The exit code of a child that raised what it should not."""


def main() -> None:
    """Serve until the standard input ends; a child leaves from here, too, so that it ends as any program does."""
    told = json.loads(sys.argv[1])
    sys.path[:] = told["path"]
    for name in told["modules"]:
        importlib.import_module(name)
    gc.freeze()  # what is here now stays, and shared with the children
    case = _serve()
    if case is not None:
        _be_child(case)


def _serve() -> dict[str, Any] | None:
    """Fork a child for each case that is told; in the child, its case."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    children: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        waiting = b""
        while True:
            for key, _ in selector.select():
                if key.fd == wake_read:
                    os.read(wake_read, 4096)
                    _report_changes(children)
                    continue
                told = os.read(0, 65536)
                if not told:
                    _end(children)
                    return None
                *lines, waiting = (waiting + told).split(b"\n")
                for line in lines:
                    case: dict[str, Any] = json.loads(line)
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        os.close(wake_read)
                        os.close(wake_write)
                        return case
                    children[pid] = case["number"]
                    _say({"number": case["number"], "pid": pid})


def _be_child(case: dict[str, Any]) -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(case["environment"])
    time.tzset()
    os.chdir(case["directory"])
    for stream, path in enumerate(case["streams"]):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND if stream else os.O_RDONLY)
        os.dup2(file, stream)
        os.close(file)
    faulthandler.register(signal.SIGUSR1)  # so that the parent can ask one that hangs what it is at
    module, _, function = case["work"].partition(":")
    work = getattr(sys.modules[module], function)
    if case["as_program"]:
        work(case)
    else:
        _end_with(work, case)


def _end_with(work: Any, case: dict[str, Any]) -> None:
    """Do the work and be gone, without waiting for threads that were left at work."""
    code = 0
    try:
        work(case)
    except BaseException:
        print(f"--- {case['work']} {case['number']}", file=sys.stderr)
        traceback.print_exc()
        code = FAILED
    sys.stderr.flush()
    os._exit(code)


def _report_changes(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            _say({"number": children[pid], "stopped": True})
        else:
            _say({"number": children.pop(pid), "ended": os.waitstatus_to_exitcode(status)})


def _end(children: dict[int, int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def _say(what: dict[str, Any]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
