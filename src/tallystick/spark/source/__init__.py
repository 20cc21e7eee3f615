"""Topics as Spark's batch and streaming source."""
