"""The users: many at a time, impatient, and they ask again until they know."""

import asyncio
import random
import time
from collections.abc import Iterable

import aiohttp

PATIENCE_SECONDS = 5.0
PAUSE_SECONDS = 0.1
GIVE_UP_SECONDS = 60.0
FINAL = ("accepted", "sold out")


class Crowd:
    """Whoever wants something, and what they were told in the end."""

    def __init__(self, shop_url: str, seed: int) -> None:
        self._shop_url = shop_url
        self._chance = random.Random(seed)  # noqa: S311 - it must be repeatable, not unguessable
        self.accepted: dict[str, set[str]] = {}
        self.sold_out: dict[str, set[str]] = {}
        self.requests = 0

    async def rush(self, activity: str, users: Iterable[str], at_once: int) -> None:
        """All of them, so many at a time. Some click twice, some come again when they have their order."""
        left = iter(users)

        async def person() -> None:
            for user in left:
                clicks = 2 if self._chance.random() < 0.2 else 1
                await asyncio.gather(*(self.buy(session, activity, user) for _ in range(clicks)))
                if self._chance.random() < 0.1:
                    await self.buy(session, activity, user)

        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE_SECONDS)) as session:
            await asyncio.gather(*(person() for _ in range(at_once)))

    async def buy(self, session: aiohttp.ClientSession, activity: str, user: str) -> None:
        """Ask until there is an answer that counts; who gets none for too long goes home without one."""
        give_up = time.monotonic() + GIVE_UP_SECONDS
        answer = await self._ask(session, activity, user)
        while answer not in FINAL and time.monotonic() < give_up:
            await asyncio.sleep(PAUSE_SECONDS)
            answer = await self._ask(session, activity, user)
        if answer not in FINAL:
            return
        told = self.accepted if answer == "accepted" else self.sold_out
        told.setdefault(activity, set()).add(user)

    async def _ask(self, session: aiohttp.ClientSession, activity: str, user: str) -> str | None:
        self.requests += 1
        try:
            async with session.post(f"{self._shop_url}/buy/{activity}/{user}") as response:
                return str((await response.json())["answer"])
        except (aiohttp.ClientError, TimeoutError):
            return None  # the shop is away, or died with the order in its hands: nobody knows
