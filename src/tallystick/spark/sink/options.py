"""The options of a write, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from tallystick.core.names import check_app, check_name
from tallystick.credentials.credentials import Credentials
from tallystick.spark.brokers import BrokersLink
from tallystick.spark.options import Given, refused

OPTIONS = ("url", "topic", "delay", "txnAppId", "txnVersion", "failOnDifferentReplay", "partTtl", "retryTimeout")
RETRY_TIMEOUT = "2m"
_LONGEST_DELAY_MS = 366 * 24 * 3600 * 1000
# A commit makes everything of a batch visible in one unit of work, and may take long; an answer that was given up
# too early would only be asked for again.
_ANSWER_SECONDS = 120.0


class SinkOptions(Struct, frozen=True):
    """What a write was told. `app` and `version` are empty where Spark's own numbers, or none, are used."""

    url: str
    topic: str
    delay_ms: int
    app: str
    version: int | None
    fail_on_different_replay: bool
    part_ttl_ms: int | None
    retry_seconds: float
    credentials: Credentials

    def link(self) -> BrokersLink:
        """A connection that outlasts a restart of the broker. Every request of the sink may be repeated."""
        return BrokersLink(
            self.url,
            timeout=_ANSWER_SECONDS,
            patience=self.retry_seconds,
            named="option 'url'",
            credentials=self.credentials,
        )

    def impatient_link(self) -> BrokersLink:
        """A connection for what is not worth waiting for."""
        return BrokersLink(self.url, timeout=5.0, named="option 'url'", credentials=self.credentials)


def parse(options: Mapping[str, str], streaming: bool) -> SinkOptions:
    given = Given(options, OPTIONS, "the sink")
    app, version = _identity(given, streaming)
    return SinkOptions(
        url=given.url(),
        topic=_topic(given),
        delay_ms=_milliseconds(given, "delay", "0s"),
        app=app,
        version=version,
        fail_on_different_replay=given.flag("failOnDifferentReplay", default=True),
        part_ttl_ms=_part_ttl(given),
        retry_seconds=given.seconds("retryTimeout", RETRY_TIMEOUT),
        credentials=given.credentials(),
    )


def _topic(given: Given) -> str:
    if "topic" in given:
        topic = check_name(given.text("topic"), "option 'topic':")
        given.check_path("topic", (topic,))
        return topic
    topics = given.topics_of_path()
    if len(topics) > 1:
        raise refused("path", f"a write has one topic (got {', '.join(topics)}). Use a column 'topic' for several")
    return topics[0] if topics else ""


def _identity(given: Given, streaming: bool) -> tuple[str, int | None]:
    app, version = given.text("txnAppId"), given.number("txnVersion", least=0)
    if "txnAppId" in given:
        check_app(app, "option 'txnAppId':")
    if streaming and version is not None:
        raise refused("txnVersion", "is for batch writes; a stream's version is its batch id, which Spark counts")
    if not streaming and ("txnAppId" in given) != ("txnVersion" in given):
        missing = "txnVersion" if "txnAppId" in given else "txnAppId"
        raise refused(missing, "is needed too: a batch write takes both txnAppId and txnVersion, or neither")
    return app, version


def _part_ttl(given: Given) -> int | None:
    if "partTtl" not in given:
        return None
    found = _milliseconds(given, "partTtl", "")
    if found == 0:
        raise refused("partTtl", "must be longer than 0: parts would expire before their batch is committed")
    return found


def _milliseconds(given: Given, name: str, default: str) -> int:
    found = round(given.seconds(name, default) * 1000)
    if found > _LONGEST_DELAY_MS:
        raise refused(name, f"{given.text(name)!r} is longer than 366d")
    return found
