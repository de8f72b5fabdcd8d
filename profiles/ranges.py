"""What ranged reads of JPEGs would save: python profiles/ranges.py LIST (as root: it empties the page cache).

Bytes that a RandomResizedCrop of at least 8 % of an image needs: the header and the rows of MCUs of its window, found
by entry points at the rows' starts; and the rate of reading as much from a cold disk, relative to whole files. With
--cached the page cache stays as it is: that tries the script and says nothing of a disk.
"""

import argparse
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from statistics import median

import numpy as np
from entries import windows_of

from tfpipe.data.catalog.filelist import read_filelist
from tfpipe.data.images.headers import header_of
from tfpipe.native import core

READERS = 16
DROP = Path("/proc/sys/vm/drop_caches")
HEAD_BYTES = 1024  # read first, of a JPEG's header


def main(args: argparse.Namespace) -> None:
    """Prints the share of the bytes and the ratio of the rates."""
    if not args.cached and not os.access(DROP, os.W_OK):
        raise SystemExit(f"{DROP} cannot be written: emptying the page cache takes root; --cached does without")
    paths = list(islice(read_filelist(args.list), args.images))
    jpegs = [Path(path).read_bytes() for path in paths]
    sizes = np.array([header_of(jpeg, "")[:2] for jpeg in jpegs], np.int32)
    needed = [needed_range(*each) for each in zip(jpegs, windows_of(sizes, 0.08).tolist(), sizes[:, 0], strict=True)]
    total = sum(map(len, jpegs))
    up_to = sum(end for _, end in needed) / total
    both = sum(end - start + min(HEAD_BYTES, start) for start, end in needed) / total
    print(f"{len(jpegs)} files: {up_to:.2f} of the bytes up to the window's end, {both:.2f} in two ranges")
    ratios = [rate(paths, needed, args.cached) / rate(paths, None, args.cached) for _ in range(args.turns)]
    where = "the page cache" if args.cached else "a cold disk"
    print(f"two ranges from {where}: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of the rate")


def needed_range(jpeg: bytes, window: list[int], height: int) -> tuple[int, int]:
    """The bytes of a JPEG that code the rows of a window; all of those without entry points."""
    entries = core().entries(jpeg, 255)
    if not entries:
        return 0, len(jpeg)
    offset_bits, record_bits = entries[18], sum(entries[18:22])
    (count,) = struct.unpack_from("<I", entries, 28)
    records = int.from_bytes(entries[32:], "little")
    starts = [(records >> row * record_bits & (1 << offset_bits) - 1) // 8 for row in range(count)]
    coded = len(jpeg) - jpeg.index(b"\xff\xda") - 14
    per_row = 8 if count > height / 16 + 1 else 16  # pixels, of images of up to 255 MCUs in a row
    first, last = max(window[0] - 2, 0) // per_row, (window[0] + window[2] + 1) // per_row + 1
    start, end = starts[min(first, count - 1)], starts[last] if last < count else coded
    return len(jpeg) - coded + start, len(jpeg) - coded + end


def rate(paths: list[str], needed: list[tuple[int, int]] | None, cached: bool) -> float:
    """Files a second, from a cold disk unless `cached`: whole ones, or the header and a range of each."""
    if not cached:
        os.sync()
        DROP.write_text("3")

    def read(number: int) -> None:
        file = os.open(paths[number], os.O_RDONLY)
        if needed is None:
            os.pread(file, os.fstat(file).st_size, 0)
        else:
            start, end = needed[number]
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(file, HEAD_BYTES, 0)
            os.pread(file, end - start, start)
        os.close(file)

    start_s = time.perf_counter()
    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, range(len(paths))))
    return len(paths) / (time.perf_counter() - start_s)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, help="a filelist")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cached", action="store_true", help="leaves the page cache as it is")
    main(parser.parse_args())
