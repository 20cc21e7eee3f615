"""Whether the other brokers answer: a circuit for each address that has kept a request waiting.

The heartbeats of a broker go through the engine. A broker can be alive by them although its advertised address accepts
connections and sends nothing, for example behind a stateful firewall. A check (`GET /healthz` on a new connection)
tells such an address from a slow request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tallystick.api.serving.forwarding import PeerWait
from tallystick.core.addresses import BrokerAddress
from tallystick.core.errors import BrokerUnavailable, BrokerUnreachable

log = logging.getLogger("tallystick.api")

CHECK_SECONDS = 5.0
CHECK_AGAIN_SECONDS = 1.0
FRESH_SECONDS = 1.0  # an open circuit does not end an exchange whose last bytes are newer

Check = Callable[[BrokerAddress], Awaitable[None]]


class Circuits:
    """The circuits of one broker.

    Args:
        check: asks the broker at an address for a sign of life; raises OSError if there is none.
        is_member: whether a live broker of the cluster advertises the address. Other circuits are forgotten.
        patience: seconds that a request waits before the address is checked.
    """

    def __init__(self, check: Check, is_member: Callable[[BrokerAddress], bool], patience: Callable[[], float]) -> None:
        self._check, self._is_member, self._patience = check, is_member, patience
        self._circuits: dict[BrokerAddress, _Circuit] = {}
        self._checks: set[asyncio.Task[None]] = set()

    def answers(self, address: BrokerAddress) -> bool:
        """False while checks of the address fail."""
        circuit = self._circuits.get(address)
        return circuit is None or not circuit.open

    def silent(self) -> int:
        """How many addresses do not answer."""
        return sum(circuit.open for circuit in self._circuits.values())

    def refuse_if_open(self, address: BrokerAddress) -> None:
        if not self.answers(address):
            raise BrokerUnreachable(
                f"the owner of this store, {address.authority}, does not answer this broker, although its heartbeats "
                "arrive; nothing was sent. Check the network between the brokers"
            )

    def asked(self, address: BrokerAddress) -> None:
        """A request begins to wait for the broker."""
        circuit = self._circuits.get(address)
        if circuit is None:
            circuit = self._added(address)
        if circuit.silent_since is None:
            circuit.silent_since = asyncio.get_running_loop().time()

    def heard(self, address: BrokerAddress) -> None:
        """A request was answered."""
        if (circuit := self._circuits.get(address)) is not None:
            circuit.silent_since = None

    def _added(self, address: BrokerAddress) -> _Circuit:
        """Those of brokers that are gone make place for it."""
        for known, circuit in list(self._circuits.items()):
            if not circuit.checking and not self._is_member(known):
                del self._circuits[known]
        added = self._circuits[address] = _Circuit(address)
        return added

    def review(self, address: BrokerAddress, wait: PeerWait, limit: float) -> None:
        """Check an address that keeps a request waiting; raise `BrokerUnavailable` if the request must not wait longer.

        Args:
            limit: seconds without a byte, after which a request ends although its broker answers checks.
        """
        if wait.since is None:
            return
        now, circuit = asyncio.get_running_loop().time(), self._circuits.get(address)
        waited = now - wait.since
        if (circuit is not None and circuit.open and waited >= FRESH_SECONDS) or waited >= limit:
            raise BrokerUnavailable(
                f"the owner of this store, {address.authority}, has not answered for {waited:.0f} s; it may have acted"
            )
        # Not by this request alone: clients that are gone sooner than that have waited for the same broker.
        if circuit is not None and circuit.due(now, self._patience()):
            circuit.checking = True
            task = asyncio.create_task(self._run(circuit))
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)

    async def _run(self, circuit: _Circuit) -> None:
        """Check until the broker answers or is no longer a member."""
        address = circuit.address
        try:
            while not await self._answered(address):
                if not self._is_member(address):
                    return
                if not circuit.open:
                    circuit.open = True
                    log.warning(
                        "the broker at %s does not answer, although its heartbeats arrive: requests for its stores "
                        "are refused (503). Check the network between the brokers",
                        address.text,
                    )
                await asyncio.sleep(CHECK_AGAIN_SECONDS)
            if circuit.open:
                log.info("the broker at %s answers again", address.text)
            circuit.silent_since = asyncio.get_running_loop().time()
        finally:
            circuit.open = circuit.checking = False

    async def _answered(self, address: BrokerAddress) -> bool:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self._check(address)
        except (OSError, BrokerUnavailable):
            return False
        return True

    async def close(self) -> None:
        for task in self._checks:
            task.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)


class _Circuit:
    """The circuit of one address.

    Attributes:
        open: the last check failed, and requests are refused.
        silent_since: when, after the last answer, the first request began to wait.
    """

    def __init__(self, address: BrokerAddress) -> None:
        self.address = address
        self.open = self.checking = False
        self.silent_since: float | None = None

    def due(self, now: float, patience: float) -> bool:
        """Whether the broker must be checked now."""
        return not self.checking and self.silent_since is not None and now - self.silent_since >= patience
