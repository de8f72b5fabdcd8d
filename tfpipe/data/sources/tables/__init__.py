"""Images that a table names or holds: CSV, JSON lines, Parquet, Arrow, and COCO's JSON."""
