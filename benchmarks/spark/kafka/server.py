"""One Kafka broker, its own controller (KRaft), with the settings and the Java options that Kafka is shipped with."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.spark.ground import QUEUES
from tallystick.core.errors import TallystickError
from tallystick.local import LocalService, free_port
from tallystick.spark.java import find_java

JAVA_OPTIONS = (
    "-Xmx1G -Xms1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 "
    "-XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true -Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
)
REPLICAS = 1
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


class KafkaServer(LocalService):
    """`with KafkaServer(directory, jars) as kafka: kafka.address`."""

    def __init__(self, directory: Path, jars: Sequence[str]) -> None:
        self._properties = directory / "server.properties"
        self._java = [str(find_java().home / "bin" / "java"), *JAVA_OPTIONS.split(), "-cp", ":".join(jars)]
        super().__init__("Kafka", [*self._java, "kafka.Kafka", str(self._properties)], directory / "kafka.log")
        content = _PROPERTIES.format(port=self.port, controller=free_port(), data=directory / "data")
        self._properties.write_text(content)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "_")
        formatting = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)]
        done = subprocess.run([*self._java, *formatting], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise TallystickError(f"Kafka did not format its directory:\n{done.stdout}{done.stderr}")
        super().start()


class Topics:
    """Kafka's topics, through its own client, which Spark's Java machine has."""

    def __init__(self, spark: SparkSession, address: str) -> None:
        java: Any = spark.sparkContext._jvm
        self._kafka = java.org.apache.kafka
        self._admin = self._kafka.clients.admin.AdminClient.create({"bootstrap.servers": address})

    def create(self, topic: str, **settings: str) -> None:
        made = self._kafka.clients.admin.NewTopic(topic, QUEUES, REPLICAS)
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self._admin.createTopics([made.configs(named)]).all().get()

    def count(self, topic: str) -> int:
        """How many rows it holds: nothing is removed from it, and no transaction leaves marks."""
        latest = self._kafka.clients.admin.OffsetSpec.latest()
        partitions = {self._kafka.common.TopicPartition(topic, number): latest for number in range(QUEUES)}
        return sum(int(one.offset()) for one in self._admin.listOffsets(partitions).all().get().values())

    def close(self) -> None:
        self._admin.close()
