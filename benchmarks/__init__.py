"""The benchmarks: of a broker and its clients here, of Spark in `spark`."""
