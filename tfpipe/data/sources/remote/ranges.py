"""Reads byte ranges of large remote files, many at once: neighbours by one request, or whole blocks into a cache.

All parts of files behind URLs are read here: shards, tables, row groups of tables, and files that are opened.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from tfpipe.config import Remote
from tfpipe.data.sources.remote.cache import BlockKey, Cache
from tfpipe.data.sources.remote.fetcher import ByteRange, Fetcher, FetchError, shared_fetcher
from tfpipe.util.files import Stamp
from tfpipe.util.forks import per_process
from tfpipe.util.made_from import MadeFrom

logger = logging.getLogger(__name__)

# Bytes per block, which one request brings. Larger ones are faster still (profiles/sources.py), but 64 requests at once
# hold that many blocks in memory, and the first batches of shuffled records wait for all of theirs.
BLOCK = 2**22
FORMAT = 1
# Bytes between two records that are fetched along with them: a request costs as much CPU time as some 100 kB.
GAP = 2**16
# Bytes of a request at most.
REQUEST_BYTES = 2**23


class Extent(NamedTuple):
    """Bytes of a file: the file's number, the first byte, and their number."""

    file: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The first byte after them."""
        return self.offset + self.length


class RemoteFiles:
    """Large files behind URLs, of which any bytes can be read. Thread-safe.

    With a cache, blocks are fetched whole as long as there is room. Every record is read equally often, so no block
    makes room for another one of this process: when the cache is full, records are requested alone.
    """

    def __init__(self, files: Sequence[tuple[str, Stamp]], remote: Remote) -> None:
        """Opens files, URLs with the stamps of their versions, with the cache `data.remote.cache` if that is set.

        A file that changes is an error from then on, as far as its server states a version; if it states none, the log
        says so.

        Raises ConfigError as Fetcher does, or if the cache's folder cannot be used.
        """
        self._files = files
        unstated = [url for url, stamp in files if stamp.changed is None]
        if unstated:
            text = "%s: the server states no ETag and no time of change: a new file of equal length is not noticed"
            logger.warning(text, unstated[0])
        # A second before, since the clock of a file system may be behind this one.
        self._opened_s = time.time() - 1.0
        schemes = {f"{url.partition('://')[0]}://" for url, _ in files}
        self._fetcher = partial(shared_fetcher, remote.model_copy(update={"cache": None}), schemes)
        self._fetcher()
        self._cache = None if remote.cache is None else Cache(remote)
        self._digest = MadeFrom(FORMAT, files, {"bytes of a block": BLOCK}).digest()
        if self._cache is not None:
            self._cache.mark(self._digest)
        self._has_room = True
        self._fetching = per_process(lambda: (threading.Lock(), dict[BlockKey, threading.Event]()))

    def read(self, extents: Sequence[Extent]) -> list[bytes | FetchError]:
        """Returns the bytes of each extent, or the error; the requests run together."""
        if self._cache is None:
            return read_ranges(self._fetcher(), self._files, extents)
        blocks = list(map(self._blocks, extents))
        self._fill(self._cache, sorted({block for some in blocks for block in some}))
        cached = [self._read_blocks(self._cache, extent, some) for extent, some in zip(extents, blocks, strict=True)]
        missing = [extent for extent, contents in zip(extents, cached, strict=True) if contents is None]
        rest = iter(read_ranges(self._fetcher(), self._files, missing))
        return [next(rest) if contents is None else contents for contents in cached]

    def _blocks(self, extent: Extent) -> list[BlockKey]:
        numbers = range(extent.offset // BLOCK, -(-extent.end // BLOCK))
        return [BlockKey(self._digest, extent.file, number) for number in numbers]

    def _read_blocks(self, cache: Cache, extent: Extent, blocks: list[BlockKey]) -> bytes | None:
        """Returns the bytes of an extent from its blocks, None if any of them is not cached."""
        parts = []
        for block in blocks:
            first = block.number * BLOCK
            part = cache.read(block, max(extent.offset - first, 0), min(extent.end - first, BLOCK))
            if part is None:
                return None
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fill(self, cache: Cache, blocks: list[BlockKey]) -> None:
        """Fetches the blocks that are missing, as far as there is room; another thread may be fetching some already."""
        claimed, awaited, (lock, fetching) = [], [], self._fetching()
        missing = [block for block in blocks if not cache.has(block)]
        with lock:
            for block in missing:
                if block in fetching:
                    awaited.append(fetching[block])
                elif self._has_room and not cache.has(block):  # another thread may have fetched it since
                    fetching[block] = threading.Event()
                    claimed.append(block)
        try:
            for block, contents in zip(claimed, self._fetcher().ranges(list(map(self._span, claimed))), strict=True):
                if self._has_room and isinstance(contents, bytes):  # an error comes again, with the record's name
                    self._has_room = cache.keep({block: contents}, unused_since=self._opened_s)
        finally:
            with lock:
                for block in claimed:
                    fetching.pop(block).set()
        for event in awaited:
            event.wait()

    def _span(self, block: BlockKey) -> ByteRange:
        url, stamp = self._files[block.file]
        return ByteRange(url, block.number * BLOCK, min((block.number + 1) * BLOCK, stamp.size or 0), stamp)


def read_ranges(
    fetcher: Fetcher, files: Sequence[tuple[str, Stamp | None]], extents: Sequence[Extent]
) -> list[bytes | FetchError]:
    """Returns the bytes of each extent, or the error; neighbours come by requests of up to REQUEST_BYTES.

    `files` are URLs, and the versions of them that are meant; None for any.
    """
    groups, requests = list(neighbours(extents)), list[list[ByteRange]]()
    for group in groups:
        file, start, _ = extents[group[0]]
        url, stamp = files[file]
        end = max(extents[number].end for number in group)
        starts = range(start, end, REQUEST_BYTES)
        requests.append([ByteRange(url, at, min(at + REQUEST_BYTES, end), stamp) for at in starts])
    answers = iter(fetcher.ranges([*chain.from_iterable(requests)]))
    results: list[bytes | FetchError] = [b""] * len(extents)
    for group, parts in zip(groups, requests, strict=True):
        received, first = [*islice(answers, len(parts))], extents[group[0]].offset
        error = next((part for part in received if isinstance(part, FetchError)), None)
        data = b"".join(part for part in received if not isinstance(part, FetchError))
        for number in group:
            start = extents[number].offset - first
            results[number] = error or data[start : start + extents[number].length]
    return results


def neighbours(extents: Sequence[Extent]) -> Iterator[list[int]]:
    """Yields the numbers of extents that one request brings, by their order in the file."""
    group: list[int] = []
    end = 0
    for number in sorted(range(len(extents)), key=extents.__getitem__):
        file, offset, length = extents[number]
        if group:
            first = extents[group[0]]
            if file != first.file or offset > end + GAP or offset + length - first.offset > REQUEST_BYTES:
                yield group
                group = []
        end = offset + length if not group else max(end, offset + length)
        group.append(number)
    if group:
        yield group
