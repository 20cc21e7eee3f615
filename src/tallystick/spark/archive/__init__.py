"""The archive: closed ranges of topics as Parquet files, and the manifests that say which of them count."""
