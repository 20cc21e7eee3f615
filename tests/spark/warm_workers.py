"""The daemon that forks Spark's Python workers, with everything imported before it forks.

Spark's own leaves the imports to its workers, since a library may start threads when it is imported. And Spark starts a
worker for each look at a format, each plan and each commit: most of the workers' time would go into imports of Arrow.
"""

import gc
import os
import warnings
from importlib import import_module

from pyspark.daemon import manager

LIBRARIES = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "pyspark_tallystick",
    "tallystick.link",
)

if __name__ == "__main__":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # no threads but that of Arrow's allocator, which knows of forks
    warnings.simplefilter("ignore")
    for library in LIBRARIES:
        import_module(library)
    gc.freeze()
    manager()
