"""Times packed formats against two limits: python profiles/packed/run.py LIST FOLDER --peers-python PYTHON.

The crops of LIST's images are packed into FOLDER, and written there in each peer's format: the same JPEGs in all, or
their pixels. What is in FOLDER already is taken as it is.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from formats import bytes_each
from given import BATCH, SIDE, Given

from tfpipe import World, load_config
from tfpipe.data.sources.registry import load_split

HERE = Path(__file__).parent
QUALITY = 90  # of the JPEGs of crops
sys.path += [str(HERE.parent), str(HERE.parent / "compare")]
from needs import need_modules  # noqa: E402
from turns import Peer, columns, exit_when_terminated, spread, take_turns  # noqa: E402


class Row(NamedTuple):
    """What is timed."""

    label: str
    module: str
    format: str | None  # that the peers' Python writes for it


LIMIT = Row("the limit: one thread, times the CPUs", "ours", None)
JPEG = {
    "limit": LIMIT,
    "tfpipe": Row("**tfpipe, crops**", "ours", None),
    "ffcv": Row("FFCV", "peers", "ffcv"),
    "grain": Row("Grain over ArrayRecord, simplejpeg", "peers", "arrayrecord"),
    "dali": Row("DALI on the CPU, TFRecord", "peers", "tfrecord"),
    "tfdata": Row("tf.data, TFRecord", "peers", "tfrecord"),
    "webdataset": Row("WebDataset, simplejpeg", "peers", "webdataset"),
    "mosaic": Row("MosaicML streaming, simplejpeg", "peers", "mosaic"),
    "loose": Row("tfpipe on the loose files, XMLs", "ours", None),
}
RAW = {
    "limit-raw": LIMIT,
    "tfpipe-raw": Row("**tfpipe, raw**", "ours", None),
    "ffcv-raw": Row("FFCV", "peers", "ffcv-raw"),
    "npy-raw": Row("one .npy, a memory map", "peers", "npy-raw"),
    "tfdata-raw": Row("tf.data, TFRecord", "peers", "tfrecord-raw"),
    "grain-raw": Row("Grain over ArrayRecord", "peers", "arrayrecord-raw"),
    "dali-raw": Row("DALI on the CPU, TFRecord", "peers", "tfrecord-raw"),
}
CONTAINERS = {
    "arrayrecord": Row("ArrayRecord, read by number", "containers", "arrayrecord"),
    "tfrecord": Row("TFRecord, `pread`", "containers", "tfrecord"),
    "tfrecord_map": Row("TFRecord, memory map", "containers", "tfrecord"),
    "flat": Row("flat file, `pread`", "containers", None),
    "npy": Row("flat file, memory map", "containers", None),
}
CONTAINERS_RAW = {
    f"{name}-raw": row._replace(format=row.format and f"{row.format}-raw") for name, row in CONTAINERS.items()
}


# Modules that the peers' Python needs: to write a format, and for a row besides.
FORMATS = {"ffcv": "ffcv", "arrayrecord": "array_record", "tfrecord": "tensorflow", "mosaic": "streaming"}
ROWS = {"grain": {"grain"}, "dali": {"nvidia.dali"}, "webdataset": {"torch"}, "mosaic": {"torch"}}


def main(args: argparse.Namespace) -> None:
    """Prints the tables."""
    exit_when_terminated()
    # As many CPUs for each row: its process inherits them.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    tables = {"limit": JPEG, "limit-raw": RAW}
    if args.containers:
        tables = {"limit": {"limit": LIMIT, **CONTAINERS}, "limit-raw": {"limit-raw": LIMIT, **CONTAINERS_RAW}}
    rows = {name: row for table in tables.values() for name, row in table.items()}
    chosen = [name for name in rows if name in tables or args.rows is None or name in args.rows]
    check_peers(args.peers_python, {name: rows[name] for name in chosen})
    args.folder.mkdir(parents=True, exist_ok=True)
    given = prepare(args)
    sizes = write_formats(args, given, {name: rows[name] for name in chosen})
    forget(args.folder)
    peers: list[Peer] = []
    try:
        for name in chosen:
            python = sys.executable if rows[name].module == "ours" else args.peers_python
            command = [python, str(HERE / "row.py"), rows[name].module, name, str(args.folder), str(args.threads)]
            peers.append(Peer(name, command, args.folder / f"{name}.log"))
        passes = {}
        for peer in peers:
            passes[peer.name] = peer.answer()
            print(f"{peer.name}: one pass gives {passes[peer.name]}", file=sys.stderr, flush=True)
        turns = take_turns(peers, args.turns, args.seconds)
    finally:
        for peer in peers:
            peer.end()
    print(f"{len(given):,} crops of {SIDE}x{SIDE}, JPEGs of {given.offsets[-1] / len(given):,.0f} bytes; ", end="")
    print(f"batches of {BATCH}; {args.turns} turns of {args.seconds:g} s, {args.threads} CPUs.")
    for limit, each in tables.items():
        labels = {name: row.label for name, row in each.items() if name in chosen}
        print(f"\n{table(turns, labels, limit, args.threads, sizes)}")
    if args.json:
        args.json.write_text(json.dumps({"bytes": sizes, "passes": passes, "turns": turns}, indent=2) + "\n")


def check_peers(python: str, rows: dict[str, Row]) -> None:
    """Raises SystemExit if this Python or the peers' lacks a module that a row needs."""
    need_modules(sys.executable, {"simplejpeg"}, "pip install simplejpeg")
    modules: set[str] = set()
    for name, row in rows.items():
        if row.module != "ours":
            kind = (row.format or "").partition("-")[0]
            modules |= {"numpy", "simplejpeg"} | ROWS.get(name.partition("-")[0], set())
            modules |= {FORMATS.get(kind, kind)} - {"", "npy"}
    need_modules(python, modules, f"install {HERE.name}/requirements.txt there, or name some --rows")


def prepare(args: argparse.Namespace) -> Given:
    """Packs the crops, and takes the JPEGs out."""
    import simplejpeg

    folder = args.folder
    lines = args.list.read_text().split("\n")
    files = [str(args.list.parent / line) for line in lines if line]
    source = folder / "list.txt"
    source.write_text("\n".join((files * -(-args.images // len(files)))[: args.images]) + "\n")
    data = {"train_filelist": str(source), "crop": "boxes", "crop_image_size": [SIDE, SIDE], "annotations": "xml"}
    (folder / "loose.json").write_text(json.dumps({"data": data}))
    for kind in ("crops", "raw"):
        pack = [sys.executable, "-m", "tfpipe", "pack", "-c", str(folder / "loose.json"), "--kind", kind]
        pack += ["--quality", str(QUALITY)] if kind == "crops" else []
        if not (folder / kind / "train.json").exists():
            subprocess.run([*pack, "--out", str(folder / kind)], check=True, stdout=sys.stderr)
        config = {"data": {"source": {"kind": "packed", "path": str(folder / kind)}, "crop_image_size": [SIDE, SIDE]}}
        (folder / f"{kind}.json").write_text(json.dumps(config))
    if not (folder / "pixels.npy").exists():
        packed = load_split(load_config(folder / "crops.json", []).data, "train", World()).shards
        jpegs = [packed.contents(record) for record in range(len(packed.records.label))]
        Given.write(folder, jpegs, map(simplejpeg.decode_jpeg, jpegs), packed.records.label.tolist())
    return Given(folder)


def write_formats(args: argparse.Namespace, given: Given, rows: dict[str, Row]) -> dict[str, float]:
    """Has the peers' Python write what is not there yet; of each row that has a format, its bytes a crop."""
    names = {name: row.format for name, row in rows.items() if row.format is not None}
    if names:
        command = [args.peers_python, str(HERE / "formats.py"), str(args.folder), *sorted(set(names.values()))]
        subprocess.run(command, check=True, stdout=sys.stderr)
    names |= {name: folder for name, folder in (("tfpipe", "crops"), ("tfpipe-raw", "raw")) if name in rows}
    return {name: bytes_each(args.folder / folder, len(given)) for name, folder in names.items()}


def forget(folder: Path) -> None:
    """Takes all files out of the page cache, so that each row reads its own from the disk first, as a job does.

    Data that has just been written is in other, smaller pages of the cache than data that is read.
    """
    os.sync()
    for path in filter(Path.is_file, folder.rglob("*")):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def table(
    turns: list[dict[str, dict[str, float]]], labels: dict[str, str], limit: str, cpus: int, sizes: dict[str, float]
) -> str:
    """In Markdown, fastest first: the rows that have a label."""
    figures = {name: columns(turns, name, limit, cpus) for name in labels}

    def cells(name: str) -> Iterator[str]:
        each = figures[name]
        yield labels[name]
        yield spread(each.ratios, ".2f")
        yield f"{each.each / figures[limit].each:.2f}"
        yield spread(each.rates, ",.0f")
        yield f"{each.busy:.2f}"
        yield f"{sizes[name]:,.0f}" if name in sizes else ""

    names = sorted(labels, key=lambda name: median(figures[name].rates), reverse=True)
    titles = ["", "of the limit, median (min to max)", "by CPU time", "images/s, median (min to max)", "CPUs busy"]
    head = [f"| {' | '.join([*titles, 'bytes an image'])} |", "|---" * (len(titles) + 1) + "|"]
    return "\n".join([*head, *(f"| {' | '.join(cells(name))} |" for name in names)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "list", type=lambda path: Path(path).absolute(), help="filelist of images, as `tfpipe filelist` writes it"
    )
    parser.add_argument("folder", type=lambda path: Path(path).absolute(), help="for the packs: 11 GB for 8,192 images")
    parser.add_argument("--peers-python", required=True, help="a Python with requirements.txt installed")
    parser.add_argument("--images", type=int, default=8192, help="the list is taken so often [%(default)s]")
    parser.add_argument("--containers", action="store_true", help="only records' bytes, gathered from Python")
    parser.add_argument("--rows", nargs="+", help=f"of {', '.join([*JPEG, *RAW])}, or of --containers'")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
