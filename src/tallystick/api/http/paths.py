"""Which route a path belongs to: a tree of its segments, so that a look costs what the path is long."""

from __future__ import annotations

from collections.abc import Iterable

from tallystick.api.http.route import Route

MOST_DIGITS = 19


class PathNode:
    """What may follow one beginning of a path: words that are known, or one parameter, never both."""

    __slots__ = ("known", "name", "number", "parameter", "routes")

    def __init__(self) -> None:
        self.known: dict[str, PathNode] = {}
        self.parameter: PathNode | None = None
        self.name, self.number = "", False
        self.routes: dict[str, Route] = {}  # that end here, by method

    def add(self, segment: str) -> PathNode:
        """The node behind a segment of a route's pattern: a word, {name} or {name:int}."""
        if not segment.startswith("{"):
            return self.known.setdefault(segment, PathNode())
        self.name, _, kind = segment.strip("{}").partition(":")
        self.number = kind == "int"
        self.parameter = self.parameter or PathNode()
        return self.parameter

    def fits(self, segment: str) -> bool:
        if self.number:
            return segment.isascii() and segment.isdigit() and len(segment) <= MOST_DIGITS
        return bool(segment)


class Paths:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = PathNode()
        for route in routes:
            node = self._root
            for segment in route.path.split("/"):
                node = node.add(segment)
            node.routes[route.method] = route
            if route.method == "GET":
                node.routes["HEAD"] = route  # the same answer; whoever sends it leaves the body out

    def find(self, path: str) -> tuple[dict[str, Route], dict[str, str]]:
        """The routes of a path by method, none if there is nothing there, and its parameters."""
        node, given = self._root, {}
        for segment in path.split("/"):
            following = node.known.get(segment)
            if following is None:
                if node.parameter is None or not node.fits(segment):
                    return {}, {}
                given[node.name] = segment
                following = node.parameter
            node = following
        return node.routes, given
