"""A program that reads and writes with a token, and keeps all that Spark shows of itself: run by a test.

Arguments: the broker's address, a topic, a directory, the file of the token. Its text is in the environment, and for
the executors in a properties file.
"""

from __future__ import annotations

import os
import sys
import urllib.request
from pathlib import Path

from tallystick.spark.session import job_session

PAGES = (
    "/api/v1/applications/{app}/environment",
    "/api/v1/applications/{app}/sql?details=true&planDescription=true&length=1000",
    "/api/v1/applications/{app}/jobs",
    "/api/v1/applications/{app}/stages",
    "/environment/",
    "/SQL/",
)


def main() -> None:
    url, topic, place, file = sys.argv[1:]
    text = os.environ["TALLYSTICK_TOKEN"]
    events = Path(place, "events")
    events.mkdir()
    conf = {
        "spark.driver.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    given = {"url": url, "topic": topic, "tokenFile": file}
    with job_session("shown", master="local[1]", conf=conf) as spark:
        messages = spark.read.format("tallystick").options(**given).load()
        messages.explain(True)
        messages.explain("formatted")
        messages.select("value").write.format("tallystick").mode("append").options(**given).save()
        in_sql = f"url '{url}', topic '{topic}', tokenFile '{file}'"
        spark.sql(f"create temporary view messages using tallystick options ({in_sql})")
        spark.sql("select count(*) as n from messages").show()
        spark.sql(f"create temporary view seen using tallystick options ({in_sql}, `x.mark` 'mark-of-the-control')")
        try:
            spark.read.format("tallystick").options(**given, token=text).load().count()
        except Exception as refused:
            print("refused:", refused)
        for number, page in enumerate(PAGES):
            address = spark.sparkContext.uiWebUrl + page.format(app=spark.sparkContext.applicationId)
            with urllib.request.urlopen(address) as answer:
                Path(place, f"page-{number}").write_bytes(answer.read())


if __name__ == "__main__":
    main()
