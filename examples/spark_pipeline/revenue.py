"""The Spark job: reads `orders`, adds up revenue by product and time, writes the results to `revenue`.

    python revenue.py http://127.0.0.1:7440 checkpoint

Kill it at any moment and start it again with the same checkpoint: each result is sent exactly once.
"""

import argparse
import uuid

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tallystick.spark.session import job_session

ORDER = "number long, product string, cents long"
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    # A driver that is killed again and again: a quick start counts for more than the fastest code.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def read_orders(spark: SparkSession, url: str) -> DataFrame:
    messages = (
        spark.readStream.format("tallystick")
        .option("url", url)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load()
    )
    return messages.select("timestamp", F.from_json(F.col("value").cast("string"), ORDER).alias("order"))


def add_up(orders: DataFrame, seconds: int) -> DataFrame:
    """Orders and cents by product and window of time; each comes out once, when its window is over.

    `timestamp` is when the broker stored the message. It never runs backwards within the topic, so no order is ever
    too late for its window. By the shop's own time an order could be: one whose outcome was found out only after a
    crash is stored later than it was made, and Spark drops what is too late without a word.
    """
    in_time = orders.withWatermark("timestamp", "1 second")
    window = F.window("timestamp", f"{seconds} seconds")
    added = in_time.groupBy(window, F.col("order.product").alias("product")).agg(
        F.count("order.number").alias("orders"), F.sum("order.cents").alias("cents")
    )
    # Ticks have no order. They are left out here and not earlier: Spark would move a filter on the product to before
    # the watermark, and time would stand still while nobody orders.
    return added.where("orders > 0")


def as_messages(revenue: DataFrame) -> DataFrame:
    begin = F.unix_millis("window.start").alias("begin")
    value = F.to_json(F.struct("product", begin, "orders", "cents"))
    return revenue.select(F.col("product").alias("key"), value.alias("value"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Revenue by product and time, from orders.")
    parser.add_argument("url", help="the broker")
    parser.add_argument("checkpoint", help="the directory in which Spark keeps its place and its sums")
    parser.add_argument("--window", type=int, default=2, help="seconds of a window")
    parser.add_argument("--master", default="local[2]", help="where Spark runs")
    parser.add_argument("--without-ledger", action="store_true", help="break it: a new txnAppId at every start")
    given = parser.parse_args()
    with job_session("revenue", given.master, conf=SETTINGS) as spark:
        query = (
            as_messages(add_up(read_orders(spark, given.url), given.window))
            .writeStream.format("tallystick")
            .option("url", given.url)
            .option("topic", "revenue")
            # Under this name the broker remembers which batches it has; a batch that Spark repeats changes nothing.
            .option("txnAppId", f"revenue-{uuid.uuid4()}" if given.without_ledger else "revenue")
            .option("checkpointLocation", given.checkpoint)
            .outputMode("append")
            .trigger(processingTime="1 second")
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main()
