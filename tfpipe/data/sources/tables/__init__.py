"""Images that a table names or holds: CSV, Parquet, Arrow, and COCO's JSON."""
