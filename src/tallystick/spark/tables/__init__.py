"""`option("table", ...)`: the broker's own state as DataFrames."""
