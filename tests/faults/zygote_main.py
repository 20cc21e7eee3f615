"""A process that has imported everything and forks a child for each case it is told of on its standard input.

Starting an interpreter for each of some hundred children would take minutes. A child is a process of its own all the
same: it opens its own connections after the fork, and dies alone. When the standard input ends, so does everybody.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import selectors
import signal
import sys
import traceback
from typing import Any

import consumer_main
import producer_main

_ROLES = {
    "produce": producer_main.main,
    "soak": producer_main.soak,
    "naive": producer_main.naive,
    "consume": consumer_main.main,
}
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
FAILED = 70
"""The exit code of a child that raised what it should not."""


def main() -> None:
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
                    return
                *lines, waiting = (waiting + told).split(b"\n")
                for line in lines:
                    _begin(json.loads(line), children)


def _begin(case: dict[str, Any], children: dict[int, int]) -> None:
    pid = os.fork()
    if pid == 0:
        _child(case)
    children[pid] = case["number"]
    _say({"number": case["number"], "pid": pid})


def _child(case: dict[str, Any]) -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    faulthandler.register(signal.SIGUSR1)  # so that the parent can ask one that hangs what it is at
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    code = 0
    try:
        _ROLES[case["role"]](case)
    except BaseException:
        print(f"--- {case}", file=sys.stderr)
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
