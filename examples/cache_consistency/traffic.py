"""What users of the service do: read and change products over HTTP, and watch that nobody is told what is over."""

import http.client
import json
import random
import threading
from collections import defaultdict
from typing import Any, NamedTuple
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 5.0


def get(url: str, product: int, *, strong: bool) -> dict[str, Any] | None:
    """None: no answer that counts."""
    return _ask("GET", url, f"/products/{product}{'?strong=1' if strong else ''}")


def put(url: str, product: int, price: int) -> dict[str, Any] | None:
    """The row as it is now, once nobody can be told the old one; None: not known, or not yet."""
    return _ask("PUT", url, f"/products/{product}", json.dumps({"price": price}))


def _ask(method: str, url: str, path: str, body: str | None = None) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        content = answer.read()
        return json.loads(content) if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None  # the service was killed
    finally:
        connection.close()


class Stale(NamedTuple):
    """A strong read that was told less than what had been confirmed before it began."""

    product: int
    told: int
    confirmed: int


class Traffic:
    """Readers and writers at the same time. Changes are confirmed by their answer; reads are held against that."""

    def __init__(self, url: str, products: range, seed: int) -> None:
        self._url, self._products, self._seed = url, products, seed
        self._over = threading.Event()
        self._confirmed: defaultdict[int, int] = defaultdict(int)
        self._lock = threading.Lock()
        self.reads = self.writes = 0
        self.stale: list[Stale] = []
        self._threads = [threading.Thread(target=self._read, args=(number,)) for number in range(6)]
        self._threads += [threading.Thread(target=self._write, args=(number,)) for number in range(2)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _read(self, number: int) -> None:
        chance = random.Random(f"{self._seed}/reader/{number}")  # noqa: S311 - it must be repeatable
        while not self._over.is_set():
            product = chance.choice(self._products)
            confirmed = self._confirmed[product]
            row = get(self._url, product, strong=True)
            if row is None:
                self._over.wait(0.05)
                continue
            with self._lock:
                self.reads += 1
                if row["version"] < confirmed:
                    self.stale.append(Stale(product, row["version"], confirmed))

    def _write(self, number: int) -> None:
        chance = random.Random(f"{self._seed}/writer/{number}")  # noqa: S311 - it must be repeatable
        while not self._over.is_set():
            product = chance.choice(self._products)
            row = put(self._url, product, chance.randrange(1_000))
            if row is None:
                self._over.wait(0.05)
                continue
            with self._lock:
                self.writes += 1
                self._confirmed[product] = max(self._confirmed[product], row["version"])
