"""Reads byte ranges of large remote files, many at once: neighbours by one request, or whole blocks into a cache."""

import json
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tfpipe.config import Remote
from tfpipe.data.sources.remote.block_cache import BlockCache
from tfpipe.data.sources.remote.fetcher import ByteRange, FetchError, shared_fetcher
from tfpipe.errors import ConfigError
from tfpipe.util.files import Stamp

# Bytes between two records that are fetched along with them: a request costs as much CPU time as some 100 kB.
GAP = 2**16
# Bytes of a request at most.
MOST = 2**23


class Place(NamedTuple):
    """Bytes of a file: the file's number, the first byte, and their number."""

    file: int
    offset: int
    length: int


class RemoteFiles:
    """Large files behind URLs, of which any bytes can be read. Thread-safe."""

    def __init__(self, files: Sequence[tuple[str, Stamp]], remote: Remote) -> None:
        """Opens files, URLs with the stamps of their versions, with the cache `data.remote.cache` if that is set.

        Raises ConfigError as Fetcher does, or if the cache's folder cannot be used.
        """
        self._urls = [url for url, _ in files]
        self._fetcher = shared_fetcher(remote.model_copy(update={"cache": None}), self._urls)
        self._cache: BlockCache | None = None
        if remote.cache is not None:
            options = json.dumps(remote.options, sort_keys=True, default=str)
            try:
                self._cache = BlockCache(remote.cache, files, options, int(remote.cache_gb * 1e9))
            except OSError as error:
                raise ConfigError(
                    f"data.remote.cache: cannot use the folder {remote.cache}: {error.strerror}"
                ) from error
        self._lock, self._fetching = threading.Lock(), dict[int, threading.Event]()

    def read(self, places: Sequence[Place]) -> list[bytes | FetchError]:
        """Returns the bytes at each place, or the error; the requests run together."""
        if self._cache is None:
            return self._read_ranges(places)
        blocks = [self._cache.blocks(*place) for place in places]
        self._fill(self._cache, sorted({block for span in blocks for block in span}))
        there = [all(map(self._cache.has, span)) for span in blocks]
        rest = iter(self._read_ranges([place for place, known in zip(places, there, strict=True) if not known]))
        cached = (self._cache.read(*place) if known else None for place, known in zip(places, there, strict=True))
        return [next(rest) if contents is None else contents for contents in cached]

    def _fill(self, cache: BlockCache, blocks: list[int]) -> None:
        """Fetches the blocks that are missing, as far as there is room; another thread may be fetching some already."""
        mine, awaited = [], []
        missing = [block for block in blocks if not cache.has(block)]
        with self._lock:
            for block in missing:
                if cache.has(block):  # another thread has fetched it since
                    continue
                if block in self._fetching:
                    awaited.append(self._fetching[block])
                elif cache.has_room(len(self._fetching)):
                    self._fetching[block] = threading.Event()
                    mine.append(block)
        try:
            spans = [cache.span(block) for block in mine]
            fetched = self._fetcher.ranges([ByteRange(self._urls[file], start, end) for file, start, end in spans])
            for block, contents in zip(mine, fetched, strict=True):
                if isinstance(contents, bytes):  # an error comes again, with the record's name
                    cache.keep(block, contents)
        finally:
            with self._lock:
                for block in mine:
                    self._fetching.pop(block).set()
        for event in awaited:
            event.wait()

    def _read_ranges(self, places: Sequence[Place]) -> list[bytes | FetchError]:
        """Reads places without the cache, neighbours by one request."""
        groups = list(neighbours(places))
        wanted = []
        for group in groups:
            first = places[group[0]]
            end = max(places[number].offset + places[number].length for number in group)
            wanted.append(ByteRange(self._urls[first.file], first.offset, end))
        results: list[bytes | FetchError] = [b""] * len(places)
        for group, request, data in zip(groups, wanted, self._fetcher.ranges(wanted), strict=True):
            for number in group:
                start = places[number].offset - request.start
                results[number] = data if isinstance(data, FetchError) else data[start : start + places[number].length]
        return results


def neighbours(places: Sequence[Place]) -> Iterator[list[int]]:
    """Yields the numbers of places that one request brings, by their order in the file."""
    group: list[int] = []
    end = 0
    for number in sorted(range(len(places)), key=places.__getitem__):
        file, offset, length = places[number]
        if group:
            first = places[group[0]]
            if file != first.file or offset > end + GAP or offset + length - first.offset > MOST:
                yield group
                group = []
        end = offset + length if not group else max(end, offset + length)
        group.append(number)
    if group:
        yield group
