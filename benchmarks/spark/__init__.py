"""`make bench-spark`: what the Spark pipeline does on this machine, broker and Spark sharing its cores."""
