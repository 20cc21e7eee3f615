"""What a broker shows of itself, read over its public API without the client under test."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

PAGE = 1_000


class BrokerView:
    """A reader of one broker."""

    def __init__(self, url: str) -> None:
        self._host = urlsplit(url).netloc

    def get(self, path: str, **query: Any) -> Any:
        status, content = self.ask(path, **query)
        assert status == 200, f"{path}: {status} {content[:500]!r}"
        return json.loads(content)

    def ask(self, path: str, **query: Any) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._host, timeout=20)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}", headers={"Accept": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def transactions(self, **query: str) -> list[dict[str, Any]]:
        """All of them, or those of a `state` or a `group`."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.get("/v1/transactions", limit=PAGE, **query)
            found += page["transactions"]
            if not page.get("next"):
                return found
            query["after"] = page["next"]

    def transaction(self, gid: str) -> dict[str, Any]:
        view: dict[str, Any] = self.get(f"/v1/transactions/{quote(gid, safe='')}")
        return view

    def state(self, gid: str) -> str | None:
        """The state of a transaction, None if the broker knows nothing of it."""
        status, content = self.ask(f"/v1/transactions/{quote(gid, safe='')}")
        return None if status == 404 else json.loads(content)["state"]

    def pending(self, group: str) -> list[dict[str, Any]]:
        """What has no outcome: prepared or parked."""
        return [one for state in ("prepared", "parked") for one in self.transactions(state=state, group=group)]

    def log(self, topic: str) -> list[dict[str, Any]]:
        """Every message of a topic, from all its queues."""
        if topic not in self.topics():
            return []
        found: list[dict[str, Any]] = []
        for queue in range(self.get(f"/v1/topics/{topic}")["queues"]):
            offset = 0
            while True:
                path = f"/v1/topics/{topic}/queues/{queue}/messages"
                page = self.get(path, offset=offset, max=PAGE)
                found += page["messages"]
                if page["next"] == offset:
                    break
                offset = page["next"]
        return found

    def topics(self) -> set[str]:
        return {topic["name"] for topic in self.get("/v1/topics")["topics"]}

    def unsettled(self, group: str) -> int | None:
        """How many messages of its topics a consumer group has not settled; None if it has not begun."""
        views = [view for view in self.get("/v1/groups")["groups"] if view["group"] == group]
        return sum(view.get("lag", 0) + view.get("leased", 0) for view in views) if views else None
