"""Images that a table names or holds: CSV, Parquet, Arrow, and COCO's JSON."""

__all__ = ["coco", "columns", "contents", "table"]
