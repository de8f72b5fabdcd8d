"""What a large list costs each rank: python profiles/scale/catalog.py [--counts 1281167 14197122] [--ranks 8].

Makes a list of each length with its index, and the images of the first batches. Then, in fresh processes: the seconds
from TensorFlow's import to the first batch, the private memory beyond that of a process that has only TensorFlow, and
what all ranks together hold of the catalog after each has read all of it (PSS). A list of 10,000 lines shows what the
pipeline itself takes.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

COUNTS = (10_000, 1_281_167, 14_197_122)  # the pipeline's own; ImageNet-1k's and ImageNet-21k's images
FOLDER = "ILSVRC/Data/CLS-LOC/train"
READY_POSITIONS = 8192
ROWS = 500_000


def main(args: argparse.Namespace) -> None:
    """Prints two tables, with a row for each length."""
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        folder = args.keep or Path(temporary)
        starts, together = [], []
        for count in args.counts:
            data = make(folder / str(count), count)
            starts.append(start_row(data, count, args.repeats))
            print(starts[-1], flush=True)
            together.append(ranks_row(data, count, args.ranks))
            print(together[-1], flush=True)
            if args.keep is None:
                shutil.rmtree(folder / str(count))
    print("\n| lines | first start | catalog | build | first batch | together | private memory | a file |")
    print("|---|---|---|---|---|---|---|---|", *starts, sep="\n")
    print(f"\n| lines, {args.ranks} ranks | files | resident in each | in all (PSS) | private memory | a file |")
    print("|---|---|---|---|---|---|", *together, sep="\n")


def make(folder: Path, count: int) -> dict[str, Any]:
    """Writes a list of `count` lines, its index, and the images of the first positions; returns the `data` section."""
    from PIL import Image

    from tfpipe.config import make_config
    from tfpipe.data.catalog.index import index_fingerprint
    from tfpipe.data.catalog.labels import class_table, image_labels
    from tfpipe.data.catalog.layout import LAYOUTS
    from tfpipe.data.catalog.lists import read_lists
    from tfpipe.data.order.permutation import Order

    path = folder / "train.txt"
    data = {"train_filelist": str(path.absolute()), "annotations": "index", "shuffle_buffer": 2}
    if (folder / "train.index.parquet").exists():
        return data
    folder.mkdir(parents=True, exist_ok=True)
    classes = min(count, max(1000, count // 650))
    with path.open("w") as file:
        for number in range(count):
            wnid = f"n{number * classes // count + 1440764:08}"
            file.write(f"{folder.absolute()}/{FOLDER}/{wnid}/{wnid}_{number % 10000}.JPEG\n")
    config = make_config({"data": data}).data
    paths, _ = read_lists(path)
    names = class_table(config, paths)
    labels = image_labels(paths, names, config, None)
    write_index(folder / "train.index.parquet", labels, index_fingerprint(paths, names, labels, LAYOUTS["ilsvrc"]))
    jpeg = BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    Image.fromarray(pixels).resize((500, 375)).save(jpeg, "JPEG", quality=85)
    (folder / "one.jpg").write_bytes(jpeg.getvalue())
    order = Order(count, config.seed, True, True, "global")
    for item in order.items(np.arange(min(count, READY_POSITIONS))).tolist():
        image = Path(paths[item])
        image.parent.mkdir(parents=True, exist_ok=True)
        if not image.exists():
            shutil.copy(folder / "one.jpg", image)
    return data


def write_index(path: Path, labels: np.ndarray, key: str) -> None:
    """Writes an index of images with a box each, every 8th with two."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tfpipe.data.annotations.cleaning import Boxes
    from tfpipe.data.catalog.index import FINGERPRINT, SCHEMA, box_columns

    fields = [SCHEMA.field(name) for name in ("label", "annotated", "boxes", "box_labels")]
    schema = pa.schema(fields, {FINGERPRINT: key})
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for start in range(0, len(labels), ROWS):
            part = labels[start : start + ROWS]
            images = np.repeat(np.arange(len(part)), 1 + (np.arange(len(part)) % 8 == 0))
            edges = np.tile(np.array([[0.1, 0.1, 0.9, 0.9]], np.float32), (len(images), 1))
            columns = box_columns(Boxes(images, edges, part[images]), len(part))
            table = pa.table({"label": part, "annotated": np.ones(len(part), bool), **columns}, schema=schema)
            writer.write_table(table)


def start_row(data: dict[str, Any], count: int, repeats: int) -> str:
    """Returns a row of a process that takes its first batch alone; the first start makes the catalog's files."""
    with started(data, 1, 0) as first:
        making_s = sum(first.report()["seconds"])
    with started(None, 1, 0) as nothing:
        without_bytes = nothing.report()["private_bytes"]
    reports = []
    for _ in range(repeats):
        with started(data, 1, 0) as process:
            reports.append(process.report())
    parts = [statistics.median(report["seconds"][part] for report in reports) for part in range(3)]
    totals = [sum(report["seconds"]) for report in reports]
    private_bytes = statistics.median(report["private_bytes"] for report in reports) - without_bytes
    times = [f"{seconds:.2f} s" for seconds in (making_s, *parts)]
    total = f"{statistics.median(totals):.2f} ({min(totals):.2f} to {max(totals):.2f}) s"
    return f"| {count:,} | {' | '.join(times)} | {total} | {memory(private_bytes, count)} |"


def ranks_row(data: dict[str, Any], count: int, ranks: int) -> str:
    """Returns a row of several ranks that hold the catalog at the same time."""
    with started(None, 1, 0) as nothing:
        without_bytes = nothing.report()["private_bytes"]
    processes = [started(data, ranks, rank) for rank in range(ranks)]
    for process in processes:
        process.report()
    for process in processes:
        process.ask("read all")
    reports = [process.ask("measure") for process in processes]
    for process in processes:
        process.close()
    size_bytes, resident_bytes = reports[0]["catalog_bytes"], statistics.median(r["resident_bytes"] for r in reports)
    pss_bytes = sum(report["pss_bytes"] for report in reports)
    private_bytes = statistics.median(report["private_bytes"] for report in reports) - without_bytes
    sizes = " | ".join(f"{number / 1e6:.0f} MB" for number in (size_bytes, resident_bytes, pss_bytes))
    return f"| {count:,} | {sizes} | {memory(private_bytes, count)} |"


def memory(size_bytes: float, count: int) -> str:
    """Returns two cells: the bytes, and the bytes for each file."""
    return f"{size_bytes / 1e6:.0f} MB | {size_bytes / count:.1f} bytes"


class started:
    """A process that takes a first batch, and then does as it is told."""

    def __init__(self, data: dict[str, Any] | None, size: int, rank: int) -> None:
        command = [sys.executable, __file__, "--one", json.dumps([data, size, rank])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def report(self) -> dict[str, Any]:
        """Returns the next report of the process."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, what: str) -> dict[str, Any]:
        """Sends a line, and returns the report that answers it."""
        assert self.process.stdin is not None
        print(what, file=self.process.stdin, flush=True)
        return self.report()

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def __enter__(self) -> "started":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def one(data: dict[str, Any] | None, size: int, rank: int) -> None:
    """Takes the first batch, or only starts TensorFlow if `data` is None; then reports for each line received."""
    import tensorflow as tf

    times, catalog, iterator = [time.perf_counter()], None, None
    if data is None:
        next(iter(tf.data.Dataset.range(3).map(lambda x: x + 1).batch(2)))
    else:
        from tfpipe import World, build_dataset, make_config
        from tfpipe.data.sources.registry import load_catalog

        config, world = make_config({"data": data}), World(rank, size)
        catalog = load_catalog(config.data, "train", world)
        times.append(time.perf_counter())
        dataset = build_dataset(config, "train", world, catalog=catalog)
        times.append(time.perf_counter())
        iterator = iter(dataset)
        images, _ = next(iterator)
        times.append(time.perf_counter())
        assert images.shape == (64, 224, 224, 3)
    report = {"seconds": [after - before for before, after in pairwise(times)], **measured()}
    print(json.dumps(report), flush=True)
    for line in sys.stdin:
        if line.strip() == "read all" and catalog is not None:
            arrays = (
                catalog.paths.text,
                catalog.paths.offsets,
                catalog.paths.folder,
                catalog.labels,
                catalog.annotated,
            )
            for array in (*arrays, *catalog.boxes, catalog.boxes.offsets(len(catalog))):
                array.max(initial=0)
        print(json.dumps(measured()), flush=True)


def measured() -> dict[str, int]:
    """Returns the private bytes of this process, and what it holds of the catalog's files: all, resident, its share."""
    whole = figures(Path("/proc/self/smaps_rollup").read_text().splitlines())
    mapped = {"Size": 0, "Rss": 0, "Pss": 0}
    for name, lines in mappings():
        if ".catalog/" in name:
            mapped = {key: mapped[key] + figures(lines)[key] for key in mapped}
    names = dict(zip(("catalog_bytes", "resident_bytes", "pss_bytes"), mapped.values(), strict=True))
    return {"private_bytes": whole["Private_Clean"] + whole["Private_Dirty"], **names}


def mappings() -> Iterator[tuple[str, list[str]]]:
    """Yields the name and the lines of each mapping of this process."""
    name, lines = "", []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split(maxsplit=1)[0].endswith(":"):
            lines.append(line)
        else:
            yield name, lines
            name, lines = line, []
    yield name, lines


def figures(lines: list[str]) -> dict[str, int]:
    """Returns the bytes in lines such as "Pss: 12 kB"."""
    return {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.endswith(" kB")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to make the data [the system's temporary folder]")
    parser.add_argument("--keep", type=Path, help="folder to keep the data in, for another run")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        one(*json.loads(chosen.one))
    else:
        main(chosen)
