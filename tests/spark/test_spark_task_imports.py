"""What a task's Python process loads: each of them pays for it, and Spark starts many."""

from __future__ import annotations

import subprocess
import sys

from source_support import new_topic, produce

from brokers import BrokerProcess
from raw_client import RawClient

_TASK = """
import sys
from tallystick.spark.schema import topic_schema
from tallystick.spark.source.reader import BatchReader
url, topic = sys.argv[1:]
reader = BatchReader({"url": url, "topic": topic}, topic_schema())
assert sum(len(batch) for part in reader.partitions() for batch in reader.read(part)) == 20
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_a_task_that_reads_loads_no_pandas_and_no_broker(broker: BrokerProcess, client: RawClient) -> None:
    """pandas comes with PySpark's own extra, and takes longer to load than everything else together."""
    topic = new_topic(client)
    produce(client, topic, 20)
    loaded = subprocess.run(
        [sys.executable, "-c", _TASK, broker.url, topic], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "tallystick" in loaded
    assert not {"pandas", "rocksdict", "aiohttp", "grpc", "sqlalchemy"} & set(loaded)
