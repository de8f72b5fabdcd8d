"""Images behind URLs: a client for many requests at once, its cache, and the source that uses them."""
