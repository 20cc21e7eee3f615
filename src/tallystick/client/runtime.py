"""What belongs to one event loop of one process: connections, background work, threads."""

from __future__ import annotations

import asyncio
import logging

from tallystick.client.brokers import Brokers
from tallystick.client.checkback import Answerer
from tallystick.client.consuming import Consumers
from tallystick.client.databases import Databases
from tallystick.client.outbox import Outbox
from tallystick.client.producer import Producer
from tallystick.client.settings import Settings
from tallystick.client.stats import Stats
from tallystick.client.transport import new_session, shut_session
from tallystick.client.workers import Workers
from tallystick.core.ids import new_member_id

log = logging.getLogger("tallystick.client")

# Enough for two hanging questions in each of several databases, while the outbox of another is still driven.
DATABASE_THREADS = 8


class Runtime:
    """Made on the event loop that it belongs to, and used on no other."""

    def __init__(self, settings: Settings, databases: Databases, stats: Stats) -> None:
        self.loop = asyncio.get_running_loop()
        self.member = settings.member or new_member_id()
        self.session = new_session()
        self.brokers = Brokers(settings, self.session, self.member)
        self.producer = Producer(self.brokers, settings, stats)
        self.workers = Workers("tallystick-database", DATABASE_THREADS)
        self.answerer = Answerer(self.brokers, settings, self.member, databases, self.workers, stats)
        self.outbox = Outbox(self.brokers, self.producer, databases, self.workers, stats, settings.timeout)
        # Whose turn it is, among blocks and handlers, to use a synchronous connection on this loop.
        self.turn = asyncio.Lock()
        self.consumers = Consumers(self.brokers, self.member, settings, stats, self.turn)

    async def close(self, timeout: float) -> None:
        """Flush what waits, for at most about `timeout` seconds, and let everything go."""
        await self.consumers.stop(timeout)
        await self.answerer.stop()
        given_up = await self.brokers.close(timeout)
        if given_up:
            log.warning("closed with %d operations unanswered; their outcome is left to the check-back", given_up)
        await self.outbox.stop(timeout)
        await shut_session(self.session)
        self.workers.stop()
