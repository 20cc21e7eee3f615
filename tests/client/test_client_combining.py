"""Threads that send for each other: whoever is interrupted, cut off or forked away, everybody is told, and once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
from client_support import Bank, pay, values_in
from test_client_forks import run

from brokers import BrokerProcess, running_broker
from cutting_proxy import CuttingProxy, lossy_proxy
from eventually import eventually
from tallystick import CheckBack, Client, errors, outgoing
from tallystick.client.connection.awaited import Awaited
from tallystick.client.connection.combiner import Combiner, Underway
from tallystick.client.connection.waiting import WaitingOp
from tallystick.core.ops import ClientOp, Commit, OpResult, Prepare

THREADS = 8
PATIENCE = 60.0
LONG = CheckBack(after=600)  # so that no check-back mends what is to be shown
INTERRUPTED = ("combiner.py", "awaited.py", "wire.py")


def way_of(ts: Client) -> Combiner:
    ts.send("greeting", 1)
    return ts._producer().connection.brokers.for_new()[0].threads


def ask(ts: Client, op: ClientOp, timeout: float = 30.0) -> Any:
    return ts._way().ask(ts._producer().connection.brokers.for_new()[0], op, timeout)


def prepare(ts: Client, topic: str, number: int) -> str:
    gid = ts.new_gid()
    ask(ts, Prepare(gid, "g", [outgoing(topic, number)], LONG.on_the_wire("", None)))
    return gid


def committed(ts: Client, gid: str) -> bool:
    """Commit; whether this was the first time."""
    result = ask(ts, Commit(gid))
    return result is None or not result.duplicate


def together(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """What came of it on each of several threads; an error counts as what came of it. Nobody may wait for ever."""

    def one(number: int) -> Any:
        try:
            return work(number)
        except BaseException as failure:
            return failure

    with ThreadPoolExecutor(count) as pool:
        return [future.result(PATIENCE) for future in [pool.submit(one, number) for number in range(count)]]


@contextlib.contextmanager
def stopped(broker: BrokerProcess) -> Iterator[None]:
    os.kill(broker.pid, signal.SIGSTOP)
    with woken(broker):
        yield


@contextlib.contextmanager
def woken(broker: BrokerProcess) -> Iterator[None]:
    """Whoever fails in the middle does not leave it asleep for the next test."""
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_threads_share_requests_and_each_gets_its_own_result(broker: BrokerProcess, topic: str, group: str) -> None:
    with Client(broker.url, group=group) as ts:
        way = way_of(ts)
        before = way.requests
        with stopped(broker), ThreadPoolExecutor(THREADS + 1) as pool:
            first = pool.submit(prepare, ts, topic, 0)
            eventually(lambda: way._sending)
            asked = [pool.submit(prepare, ts, topic, number) for number in range(1, THREADS)]
            unknown = pool.submit(ask, ts, Commit(ts.new_gid()))
            eventually(lambda: len(way.waiting) == THREADS)
            os.kill(broker.pid, signal.SIGCONT)
            gids = [one.result(PATIENCE) for one in (first, *asked)]
            with pytest.raises(errors.NotFound):
                unknown.result(PATIENCE)
        assert way.requests - before == 2
        assert together(lambda number: committed(ts, gids[number])) == [True] * THREADS
    assert values_in(broker.url, topic) == list(range(THREADS))


def test_a_single_thread_needs_no_other(broker: BrokerProcess, topic: str, group: str) -> None:
    with Client(broker.url, group=group) as ts:
        way, coalescer = way_of(ts), ts._producer().connection.brokers.for_new()[0].ops
        before = coalescer.requests
        for number in range(20):
            ask(ts, Commit(prepare(ts, topic, number)))
        assert coalescer.requests == before
        assert way.requests == 40
        assert way._wire.connections == 1


# Interrupted


class Interrupt:
    """Raises KeyboardInterrupt in a thread at the n-th line that it runs in some files: what sends for threads."""

    def __init__(self, at: int, files: tuple[str, ...] = INTERRUPTED) -> None:
        self.at, self._files = at, files
        self.passed = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self._files):
            return None
        if event == "line":
            self.passed += 1
            if self.passed == self.at:
                raise KeyboardInterrupt(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        return self


def interrupted(ts: Client, topic: str, at: int) -> tuple[list[Any], Interrupt]:
    """Several threads at once, the first of which is interrupted."""
    interrupt = Interrupt(at)
    barrier = threading.Barrier(3)

    def work(number: int) -> Any:
        barrier.wait()
        if number == 0:
            sys.settrace(interrupt)
        try:
            gid = prepare(ts, topic, number)
        finally:
            sys.settrace(None)
        return committed(ts, gid)

    return together(work, 3), interrupt


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("_left_sockets")
@pytest.mark.parametrize("begin", range(4))
def test_a_thread_that_is_interrupted_at_any_line_keeps_nobody_waiting(
    broker: BrokerProcess, topic: str, group: str, begin: int
) -> None:
    """Every line is a place where Ctrl-C may come: of sending, of waiting, and of passing the baton on."""
    with Client(broker.url, group=group) as ts:
        way_of(ts)
        results, rehearsal = interrupted(ts, f"{topic}-rehearsal", at=0)
        assert results == [True] * 3
        assert rehearsal.passed > 20
        for at in range(1 + begin, rehearsal.passed + 40, 4):
            results, interrupt = interrupted(ts, f"{topic}-{at}", at)
            assert [type(result) for result in results[1:]] == [bool, bool], (at, results)
            assert isinstance(results[0], KeyboardInterrupt if interrupt.passed >= at else bool), (at, results)
            assert values_in(broker.url, f"{topic}-{at}") == [0, 1, 2][interrupt.passed >= at :]
        assert together(lambda number: type(prepare(ts, topic, number))) == [str] * THREADS


def test_a_signal_handler_may_begin_a_block_while_its_own_thread_sends_one(
    broker: BrokerProcess, bank: Bank, topic: str, group: str
) -> None:
    handled: list[str] = []

    def handler(number: int, frame: FrameType | None) -> None:
        os.kill(broker.pid, signal.SIGCONT)
        handled.append(pay(ts, bank, topic, 2, note="by the handler", wait=True))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with Client(broker.url, group=group, check=LONG) as ts:
            pay(ts, bank, topic, 0, wait=True)
            main = threading.get_ident()
            way = way_of(ts)
            for follows in (False, True):  # whether the thread that is interrupted sends, or waits for one that does
                handled.clear()
                os.kill(broker.pid, signal.SIGSTOP)
                other = threading.Thread(target=prepare, args=(ts, f"{topic}-other", 0))
                if follows:
                    other.start()
                    eventually(lambda: way._sending)

                def interrupt(place: Callable[[], Any]) -> None:
                    eventually(place)
                    signal.pthread_kill(main, signal.SIGUSR1)

                place = (lambda: way.waiting) if follows else (lambda: way._sending)
                threading.Thread(target=interrupt, args=(place,)).start()
                prepare(ts, f"{topic}-interrupted", 1)
                assert len(handled) == 1
                if follows:
                    other.join(PATIENCE)
        assert values_in(broker.url, topic) == [0, 2, 2]
    finally:
        signal.signal(signal.SIGUSR1, before)


WAITING = """
import os, signal, sys, threading, time
import tallystick
from tallystick.core.ops import Commit, Prepare
from tallystick.core.message import OutgoingMessage

url, topic, broker = sys.argv[1:]
ts = tallystick.Client(url, group="g")
ts.send("greeting", 1)
peer = ts._producer().connection.brokers.for_new()[0]


def prepare(number):
    gid = ts.new_gid()
    ts._way().ask(peer, Prepare(gid, "g", [OutgoingMessage(topic, b"%d" % number)]), 30.0)
    ts._way().ask(peer, Commit(gid), 30.0)


def interrupt():
    while len(peer.threads.waiting) < 2:
        time.sleep(0.001)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
os.kill(int(broker), signal.SIGSTOP)
threads = [threading.Thread(target=prepare, args=(1,))]
threads[0].start()
while not peer.threads._sending:
    time.sleep(0.001)
threads += [threading.Thread(target=prepare, args=(2,)), threading.Thread(target=interrupt)]
for thread in threads[1:]:
    thread.start()
try:
    prepare(3)
except KeyboardInterrupt:
    print("interrupted")
os.kill(int(broker), signal.SIGCONT)
for thread in threads:
    thread.join()
ts.close()
"""


def test_ctrl_c_for_a_thread_that_waits_is_its_own_affair(broker: BrokerProcess, topic: str) -> None:
    with woken(broker):
        assert run(WAITING, broker.url, topic, str(broker.pid)) == "interrupted\n"
    assert values_in(broker.url, topic) == [1, 2]


# Cut off


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_connection_that_breaks_under_the_operations_of_many(
    broker: BrokerProcess, topic: str, group: str, cut: Any
) -> None:
    """The broker has acted, or not: all are sent again, and each counts once."""
    proxy = CuttingProxy(broker.port)
    with contextlib.closing(proxy), Client(proxy.url, group=group) as ts:
        way = way_of(ts)
        with stopped(broker), ThreadPoolExecutor(THREADS) as pool:
            first = pool.submit(prepare, ts, topic, 0)
            eventually(lambda: way._sending)
            rest = [pool.submit(prepare, ts, topic, number) for number in range(1, THREADS)]
            eventually(lambda: len(way.waiting) == THREADS - 1)
            proxy.arm(cut)
            os.kill(broker.pid, signal.SIGCONT)
            eventually(lambda: proxy.cut)
            proxy.calm()
            gids = [one.result(PATIENCE) for one in (first, *rest)]
        assert together(lambda number: committed(ts, gids[number])) == [True] * THREADS
    assert values_in(broker.url, topic) == list(range(THREADS))


def test_lost_answers_of_blocks_on_many_threads(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    with lossy_proxy(broker.port) as proxy, Client(proxy.url, group=group, check=LONG) as ts:
        pay(ts, bank, topic, 0, wait=True)
        proxy.losing, proxy.lose_at_most = b"\xa7prepare", 3
        together(lambda number: pay(ts, bank, topic, 1 + number, note=f"{number}"))
    assert values_in(broker.url, topic) == list(range(THREADS + 1))
    assert len(bank.notes()) == THREADS + 1


def test_nobody_waits_longer_than_it_wants_for_a_broker_that_is_silent(topic: str, group: str) -> None:
    with running_broker() as broker, Client(broker.url, group=group, timeout=1.0) as ts:
        way_of(ts)
        with stopped(broker):
            results = together(lambda number: ask(ts, Prepare(ts.new_gid(), "g", [outgoing(topic, number)]), 0.5))
        assert all(isinstance(result, errors.BrokerUnavailable) for result in results)
        eventually(lambda: prepare(ts, topic, 1), ignoring=(errors.BrokerUnavailable,))


def test_closing_tells_everybody_who_waits(topic: str, group: str) -> None:
    with running_broker() as broker:
        ts = Client(broker.url, group=group)
        way = way_of(ts)
        with stopped(broker), ThreadPoolExecutor(THREADS) as pool:
            asked = [pool.submit(prepare, ts, topic, number) for number in range(THREADS)]
            eventually(lambda: len(way.waiting) == THREADS - 1)
            ts.close(timeout=0.2)
            failures = [one.exception(PATIENCE) for one in asked]
        assert {type(failure) for failure in failures} == {errors.BrokerUnavailable}


def test_closing_while_threads_work_loses_nothing(broker: BrokerProcess, bank: Bank, topic: str, group: str) -> None:
    ts = Client(broker.url, group=group, check=LONG)
    done: list[int] = []
    before: list[int] = []

    def work(number: int) -> None:
        for turn in range(1_000):
            pay(ts, bank, topic, number * 1_000 + turn)
            done.append(number * 1_000 + turn)

    def close(_: int) -> None:
        eventually(lambda: len(done) > 20)
        before.extend(done)
        ts.close()

    results = together(lambda number: work(number) if number else close(number), 4)
    assert all(isinstance(result, errors.TallystickError) for result in results[1:])
    assert set(before) <= set(values_in(broker.url, topic))


# Forked away

FORKED = """
import os, signal, sys, threading, time
import tallystick
from tallystick.core.errors import BrokerUnavailable
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare

url, topic, broker, way = sys.argv[1:]
ts = tallystick.Client(url, group="g")
ts.send("greeting", 1)
parent = os.getpid()
children = []


def prepare(number):
    peer = ts._producer().connection.brokers.for_new()[0]
    gid = ts.new_gid()
    ts._way().ask(peer, Prepare(gid, "g", [OutgoingMessage(topic, b"%d" % number)]), 30.0)
    ts._way().ask(peer, Commit(gid), 30.0)


def fork(*_):
    child = os.fork()
    if child:
        children.append(child)
    os.kill(int(broker), signal.SIGCONT)
    return child == 0


os.kill(int(broker), signal.SIGSTOP)
sending = ts._producer().connection.brokers.for_new()[0].threads._sending
if way == "thread":
    thread = threading.Thread(target=prepare, args=(1,))
    thread.start()
    while not sending:
        time.sleep(0.001)
    if fork():
        prepare(2)
        ts.close()
        os._exit(0)
    thread.join()
else:  # the thread that sends forks, in a signal handler, and comes back twice
    signal.signal(signal.SIGUSR1, fork)

    def interrupt():
        while not sending:
            time.sleep(0.001)
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    threading.Thread(target=interrupt).start()
    try:
        prepare(1)
    except BrokerUnavailable:
        assert os.getpid() != parent
        prepare(2)
        ts.close()
        os._exit(0)
    assert os.getpid() == parent, "the child has read an answer of the parent's"
prepare(3)
assert os.waitpid(children[0], 0)[1] == 0
ts.close()
"""


@pytest.mark.parametrize("way", ["thread", "handler"])
def test_a_fork_while_a_thread_sends(broker: BrokerProcess, topic: str, way: str) -> None:
    with woken(broker):
        run(FORKED, broker.url, topic, str(broker.pid), way)
    assert values_in(broker.url, topic) == [1, 2, 3]


def test_time_left_is_kept(broker: BrokerProcess, topic: str, group: str) -> None:
    """A block that waits for its messages stays no longer than the client was told."""
    with Client(broker.url, group=group, wait=True, commit_wait=0.01) as ts:
        way = way_of(ts)
        with stopped(broker):
            began = time.monotonic()
            way.tell(b"\x80", 20.0, stay=0.01, done=lambda _: None)
            assert time.monotonic() - began < 10


def test_an_answer_that_the_event_loop_brings_late_is_the_answer(broker: BrokerProcess, topic: str, group: str) -> None:
    with Client(broker.url, group=group) as ts:
        way = way_of(ts)
        awaited = Awaited()
        op = WaitingOp(b"", awaited, time.monotonic() - 1.0, retry=True)
        threading.Timer(0.1, awaited.set_result, [OpResult(duplicate=True)]).start()
        answer = Underway(way, op, awaited, op.deadline).answer()
        assert answer is not None
        assert answer.duplicate
