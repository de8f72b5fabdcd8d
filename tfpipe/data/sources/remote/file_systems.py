"""fsspec's file systems, one for a scheme of URLs."""

from collections.abc import Iterable
from typing import Any

from tfpipe.config import Remote
from tfpipe.errors import ConfigError


def open_file_system(scheme: str, config: Remote) -> Any:
    """Opens fsspec's file system for a scheme, without its own limits on concurrency and without its own retries."""
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise ConfigError(
            f"the filelist has {scheme}:// URLs, for which a package is missing ({error}): pip install 'tfpipe[remote]'"
        ) from error
    options = dict(config.options)
    if scheme in ("http", "https"):
        options.setdefault("get_client", _http_client)
    try:
        if scheme == "s3":
            pool = {"max_pool_connections": config.concurrency, "retries": {"max_attempts": 0}}
            options["config_kwargs"] = pool | options.get("config_kwargs", {})
            # Above 1, s3fs would first request each file's size.
            options["max_concurrency"] = 1
        system = kind(asynchronous=True, skip_instance_cache=True, use_listings_cache=False, **options)
    except (TypeError, ValueError, OSError) as error:
        raise ConfigError(f"data.remote.options: {scheme}:// cannot be used with these: {error}") from error
    if scheme == "s3":
        system.retries = 1
    return system


async def _http_client(**options: Any) -> Any:
    import aiohttp

    # No connection limit: the Fetcher's semaphore limits the concurrency.
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), **options)


async def close_file_systems(systems: Iterable[Any]) -> None:
    """Closes the connections of file systems."""
    for system in systems:
        client = getattr(system, "_session", None) or getattr(system, "_s3", None)
        if client is not None:
            await client.close()
