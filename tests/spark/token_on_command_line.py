"""A program that reads a topic with PySpark's own session: run by a test, which looks at the processes meanwhile.

Arguments: the broker's address, a topic, a master, and `builder` for the token in the session builder.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from tallystick.spark import register
from tallystick.spark.java import find_java


def main() -> None:
    url, topic, master, way = sys.argv[1:]
    os.environ["JAVA_HOME"] = str(find_java().home)
    builder = SparkSession.Builder().master(master)
    if way == "builder":
        builder = builder.config("spark.executorEnv.TALLYSTICK_TOKEN", os.environ["TALLYSTICK_TOKEN"])
    settings = {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    try:
        print("rows:", spark.read.format("tallystick").option("url", url).load(topic).count())
    except Exception as refused:
        print("refused:", refused)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
