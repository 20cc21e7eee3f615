"""`with ts.transaction(conn) as tx:`, for threads and for asyncio."""
