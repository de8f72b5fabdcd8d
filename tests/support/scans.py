"""JPEGs of several scans from random coefficients, in any order of scans that ITU-T T.81 allows; see its Annex G."""

import random
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

# Sampling factors of the components, by name.
FACTORS = {
    "Gray": [(1, 1)],
    "444": [(1, 1)] * 3,
    "422": [(2, 1), (1, 1), (1, 1)],
    "420": [(2, 2), (1, 1), (1, 1)],
    "440": [(1, 2), (1, 1), (1, 1)],
}
LONGEST_RUN = 0x7FFF


@dataclass(frozen=True)
class Scan:
    """A scan's header: numbers of components, first and last place, lowest bit before and after it."""

    components: tuple[int, ...]
    first: int = 0
    last: int = 0
    high: int = 0
    low: int = 0
    interval: int = 0
    """MCUs between restart markers."""


@dataclass
class Picture:
    """Coefficients of an image, in zigzag order: int [rows of blocks, blocks in a row, 64] for each component."""

    size: tuple[int, int]
    factors: list[tuple[int, int]]
    coefficients: list[np.ndarray]

    @classmethod
    def random(cls, draw: random.Random, size: tuple[int, int], sampling: str) -> "Picture":
        make, factors = np.random.default_rng(draw.getrandbits(32)), FACTORS[sampling]
        down, across = (
            -(-side // (8 * max(f[axis] for f in factors))) for side, axis in zip(size, (1, 0), strict=True)
        )
        scale = draw.choice((3, 30, 90)) / (1 + np.arange(64))
        coefficients = [np.rint(make.laplace(0, scale, (down * v, across * h, 64))).astype(int) for h, v in factors]
        for blocks in coefficients:
            blocks[..., 0] = make.integers(-300, 301, blocks.shape[:2])
            blocks[make.random(blocks.shape[:2]) < draw.choice((0, 0.5, 0.98)), 1:] = 0  # runs of empty blocks
        return cls(size, factors, [blocks.clip(-400, 400) for blocks in coefficients])

    def blocks(self, scan: Scan) -> Iterator[tuple[bool, int, np.ndarray]]:
        """Yields the blocks of a scan in their order: whether an MCU begins, the component, the coefficients."""
        if len(scan.components) == 1:
            number = scan.components[0]
            most = [max(f[axis] for f in self.factors) for axis in (1, 0)]
            own = self.factors[number][::-1]
            down, across = (-(-(s * f) // (8 * m)) for s, f, m in zip(self.size, own, most, strict=True))
            for block in self.coefficients[number][:down, :across].reshape(-1, 64):
                yield True, number, block
            return
        h, v = self.factors[0]
        for row in range(len(self.coefficients[0]) // v):
            for column in range(len(self.coefficients[0][0]) // h):
                begins = True
                for number in scan.components:
                    h_own, v_own = self.factors[number]
                    place = slice(row * v_own, (row + 1) * v_own), slice(column * h_own, (column + 1) * h_own)
                    for block in self.coefficients[number][place].reshape(-1, 64):
                        yield begins, number, block
                        begins = False


@dataclass
class Coder:
    """What a scan codes: symbols with the bits after them, and restart markers (None)."""

    scan: Scan
    codes: list[tuple[int, int | None, str] | None] = field(default_factory=list)
    """(0 for DC or 1 for AC, symbol, bits after it); the symbol None: bits alone."""
    run: int = 0
    corrections: str = ""
    before: Counter[int] = field(default_factory=Counter)

    def restart(self) -> None:
        self.end_run()
        self.before.clear()
        self.codes.append(None)

    def end_run(self) -> None:
        if self.run:
            size = self.run.bit_length() - 1
            bits = f"{self.run - (1 << size):0{size}b}" if size else ""
            self.codes += [(1, size << 4, bits), (1, None, self.corrections)]
        self.run, self.corrections = 0, ""

    def dc(self, component: int, value: int) -> None:
        if self.scan.high:
            self.codes.append((0, None, str(value >> self.scan.low & 1)))
            return
        level = value >> self.scan.low
        change, self.before[component] = level - self.before[component], level
        self.codes.append((0, abs(change).bit_length(), signed(change)))

    def ac(self, block: np.ndarray, runs: bool = True) -> None:
        """Codes coefficients that no scan has coded, in zigzag order; runs: blocks without codes of their own."""
        zeros = 0
        for value in block.tolist():
            level = (abs(value) >> self.scan.low) * (1 if value > 0 else -1)
            if not level:
                zeros += 1
                continue
            self.end_run()
            self.codes += [(1, 0xF0, "")] * (zeros // 16)
            self.codes.append((1, zeros % 16 << 4 | abs(level).bit_length(), signed(level)))
            zeros = 0
        if zeros:
            self.run += 1
            if not runs or self.run == LONGEST_RUN:
                self.end_run()

    def refine(self, block: np.ndarray) -> None:
        levels = [abs(value) >> self.scan.low for value in block.tolist()]
        last = max((place for place, level in enumerate(levels) if level == 1), default=-1)
        zeros, corrections = 0, ""
        for place, (value, level) in enumerate(zip(block.tolist(), levels, strict=True)):
            if level > 1:
                corrections += str(level & 1)
            elif level == 1:
                self.end_run()
                self.codes += [(1, zeros << 4 | 1, "1" if value > 0 else "0"), (1, None, corrections)]
                zeros, corrections = 0, ""
            else:
                zeros += 1
                if zeros == 16 and place < last:
                    self.end_run()
                    self.codes += [(1, 0xF0, ""), (1, None, corrections)]
                    zeros, corrections = 0, ""
        if zeros or corrections:
            self.run += 1
            self.corrections += corrections
            if self.run == LONGEST_RUN:
                self.end_run()


def signed(value: int) -> str:
    """Returns the bits after a code for a value."""
    size = abs(value).bit_length()
    return f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else ""


def table_of(symbols: Counter[int], long: int) -> tuple[bytes, dict[int, str]]:
    """Returns a Huffman table, as in a DHT segment, and its codes: of 2 to 4 bits, the rarer ones of `long`."""
    ordered = [symbol for symbol, _ in symbols.most_common()] or [0]
    counts = [0, 1, 1, 1] + [0] * 12
    counts[long - 1] = max(0, len(ordered) - 3)
    if len(ordered) < 3:
        ordered += [symbol for symbol in range(3) if symbol not in ordered][: 3 - len(ordered)]
    codes, code, rest = {}, 0, iter(ordered)
    for length, count in enumerate(counts, start=1):
        for _ in range(count):
            codes[next(rest)] = f"{code:0{length}b}"
            code += 1
        code <<= 1
    return bytes(counts) + bytes(ordered), codes


def segment(marker: int, contents: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(contents)) + contents


def coded(codes: list, tables: list[dict[int, str]]) -> bytes:
    """Returns coded data, with byte stuffing and restart markers."""
    data, bits, restarts = b"", [], 0
    for each in [*codes, None]:
        if each is not None:
            kind, symbol, rest = each
            bits.append(rest if symbol is None else tables[kind][symbol] + rest)
            continue
        text = "".join(bits)
        text += "1" * (-len(text) % 8)
        data += bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8)).replace(b"\xff", b"\xff\0")
        data += bytes([0xFF, 0xD0 + restarts % 8])
        bits, restarts = [], restarts + 1
    return data[:-2]


def scan_of(picture: Picture, scan: Scan, sequential: bool, long: int) -> bytes:
    coder, mcus = Coder(scan), 0
    for begins, number, block in picture.blocks(scan):
        if begins:
            if scan.interval and mcus and mcus % scan.interval == 0:
                coder.restart()
            mcus += 1
        if sequential:
            coder.dc(number, int(block[0]))
            coder.ac(block[1:], runs=False)
        elif not scan.first:
            coder.dc(number, int(block[0]))
        elif scan.high:
            coder.refine(block[scan.first : scan.last + 1])
        else:
            coder.ac(block[scan.first : scan.last + 1])
    coder.end_run()
    result, tables = b"", []
    for kind in (0, 1):
        symbols = Counter(code[1] for code in coder.codes if code and code[0] == kind and code[1] is not None)
        table, codes = table_of(symbols, 5 if not kind else long)
        result += segment(0xC4, bytes([kind << 4]) + table) if symbols else b""
        tables.append(codes)
    last = 63 if sequential else scan.last
    result += segment(0xDD, struct.pack(">H", scan.interval))
    components = b"".join(bytes([1 + number, 0]) for number in scan.components)
    limits = bytes([scan.first, last, scan.high << 4 | scan.low])
    return result + segment(0xDA, bytes([len(scan.components)]) + components + limits) + coded(coder.codes, tables)


def jpeg_of(picture: Picture, scans: list[Scan], sequential: bool = False, long: int = 9, quant: int = 2) -> bytes:
    """Returns a JPEG; long: bits of most codes of AC, 9 to 16; quant: the only value of its quantisation table."""
    frame = struct.pack(">BHHB", 8, *picture.size, len(picture.factors))
    frame += b"".join(bytes([1 + number, h << 4 | v, 0]) for number, (h, v) in enumerate(picture.factors))
    start = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([quant] * 64)) + segment(0xC1 if sequential else 0xC2, frame)
    return start + b"".join(scan_of(picture, scan, sequential, long) for scan in scans) + b"\xff\xd9"


def random_scans(draw: random.Random, components: int, most_interval: int = 0) -> list[Scan]:
    """Returns the scans of a whole progressive image, in a random order; bands are split, and split again."""

    def interval() -> int:
        return draw.randint(0, most_interval)

    scans, dc_low, waiting = [], draw.randint(0, 3), []
    groups = [tuple(range(components))] if draw.random() < 0.5 else [(number,) for number in range(components)]
    for group in groups:
        scans.append(Scan(group, 0, 0, 0, dc_low, interval()))
        waiting.append((group, 0, 0, dc_low))
    for number in range(components):
        edges = [1, *sorted(draw.sample(range(2, 64), draw.choice((0, 0, 1, 3)))), 64]
        for first, end in pairwise(edges):
            low = draw.randint(0, 3)
            scans.append(Scan((number,), first, end - 1, 0, low, interval()))
            waiting.append(((number,), first, end - 1, low))
    while waiting := [each for each in waiting if each[3]]:
        group, first, last, low = waiting.pop(draw.randrange(len(waiting)))
        middle = draw.randint(first, last) if first and draw.random() < 0.2 else last
        for begin, end in {(first, middle), (middle + 1, last)} - {(last + 1, last)}:
            scans.append(Scan(group, begin, end, low, low - 1, interval()))
            waiting.append((group, begin, end, low - 1))
    return scans


def random_jpeg(draw: random.Random, side: int = 60) -> tuple[bytes, tuple[int, int]]:
    """Returns a JPEG of several scans, progressive or sequential, of up to `side` pixels a side, and its size."""
    size, sampling = (draw.randint(1, side), draw.randint(1, side)), draw.choice([*FACTORS])
    picture, interval = Picture.random(draw, size, sampling), draw.choice((0, 0, 1, 7))
    components, sequential = len(picture.factors), sampling != "Gray" and draw.random() < 0.25
    if sequential:
        groups = draw.choice(([(0,), (1,), (2,)], [(0,), (1, 2)], [(0, 1), (2,)], [(2,), (0,), (1,)]))
        scans = [Scan(group, interval=draw.randint(0, interval)) for group in groups]
    else:
        scans = random_scans(draw, components, interval)
    return jpeg_of(picture, scans, sequential, draw.choice((9, 12, 16)), draw.randint(1, 3)), size
