"""Kafka, and Spark's connector for it: fetched by `mvn`, with its own settings and into its own store."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from tallystick.core.errors import TallystickError

KAFKA = "3.9.1"
CONNECTOR = "4.2.0"  # of the newest Spark that Maven has; it runs on the one of requirements.lock, too
SECONDS = 900  # for a first download on a slow line

SERVER = (f"org.apache.kafka:kafka_2.13:{KAFKA}", "org.slf4j:slf4j-simple:1.7.36")
# The connector and what it names itself, one by one: the rest Spark has already, in versions of its own.
IN_SPARK = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",  # no tokens are used: any of Spark 4 will do
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)

_PROJECT = """<project>
<modelVersion>4.0.0</modelVersion>
<groupId>benchmarks</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{dependencies}</dependencies>
</project>
"""
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class MavenMissing(TallystickError):
    """What Maven has cannot be had here."""

    code = "maven_missing"


class Jars(Struct, frozen=True):
    """The files: of Kafka with all that it stands on, and what Spark needs to speak with it."""

    server: list[str]
    in_spark: list[str]


@functools.cache
def jars() -> Jars:
    return Jars(_fetched("server", SERVER, alone=False), _fetched("connector", IN_SPARK, alone=True))


def _fetched(name: str, artifacts: Iterable[str], alone: bool) -> list[str]:
    """The files of artifacts; unless they are wanted alone, those of all that they depend on as well."""
    program = shutil.which("mvn")
    if program is None:
        raise MavenMissing(
            "Kafka and its connector come from Maven, and there is no `mvn` on PATH (Debian: apt-get install maven)"
        )
    with tempfile.TemporaryDirectory(prefix="tallystick-maven-") as directory:
        project, found = Path(directory, "pom.xml"), Path(directory, "found")
        dependencies = "".join(_dependency(one, _ALONE if alone else "") for one in artifacts)
        project.write_text(_PROJECT.format(name=name, dependencies=dependencies))
        goal = ("dependency:build-classpath", f"-Dmdep.outputFile={found}", "-Dmdep.pathSeparator=:")
        command = [program, "--quiet", "--batch-mode", "--file", str(project), *goal]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=directory)
        if done.returncode != 0 or not found.exists():
            said = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stderr or "nothing")
            raise MavenMissing(f"`mvn` did not get {', '.join(artifacts)}; it says: {said.strip()}")
        return found.read_text().strip().split(":")


def _dependency(artifact: str, rest: str) -> str:
    names = zip(("groupId", "artifactId", "version"), artifact.split(":"), strict=True)
    return f"<dependency>{''.join(f'<{name}>{value}</{name}>' for name, value in names)}{rest}</dependency>"
