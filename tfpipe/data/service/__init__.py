"""The same work in other processes: workers, the client that asks them, and feeds of blocks in order."""
