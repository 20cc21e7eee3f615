"""What a task's Python process loads: each of them pays for it, and Spark starts many."""

from __future__ import annotations

import subprocess
import sys

from source_support import new_topic, produce

from brokers import BrokerProcess
from raw_client import RawClient

_TASK = """
import pickle, sys
import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType
from tallystick.spark.schema import topic_schema
from tallystick.spark.sink.writer import BatchWriter
from tallystick.spark.source.reader import BatchReader
url, topic = sys.argv[1:]
reader = BatchReader({"url": url, "topic": topic}, topic_schema())
parts = reader.partitions()
assert "pyarrow" in sys.modules
rows = [batch for part in parts for batch in reader.read(part)]
columns = StructType([StructField("key", StringType()), StructField("value", StringType())])
batches = (batch.select(["key", "value"]) for batch in rows)
message = BatchWriter(columns, {"url": url, "topic": topic + "-copy"}, overwrite=False).write(batches)
assert message.count == sum(map(len, rows)) == 20, message
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_a_task_that_reads_and_writes_loads_no_pandas_and_no_broker(broker: BrokerProcess, client: RawClient) -> None:
    """pandas comes with PySpark's own extra, and takes longer to load than everything else together."""
    topic = new_topic(client)
    produce(client, topic, 20)
    loaded = subprocess.run(
        [sys.executable, "-c", _TASK, broker.url, topic], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "tallystick" in loaded
    assert not {"pandas", "rocksdict", "aiohttp", "grpc", "sqlalchemy"} & set(loaded)
