"""The store's rules over any ordered key-value engine; RocksDB and memory are two of them."""
