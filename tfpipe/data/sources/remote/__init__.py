"""Images behind URLs: a client for many requests at once, its cache, and the source that uses them."""

__all__ = ["fetch_cache", "fetch_loop", "fetcher", "fetching", "file_systems", "source"]
