"""What a large list costs each rank: python profiles/scale/catalog.py [--counts 1281167 14197122] [--ranks 8].

Makes a list of each length with its index, and the images of the first batches. Then, in processes forked from one that
has imported TensorFlow: the seconds to the first batch, the private memory (Private_Clean, Private_Dirty) beyond that
of such a process without data, the most that it had meanwhile (RssAnon), and what all ranks together hold of the
catalog after each has read all of it (PSS). A list of 10,000 lines shows what the pipeline itself takes.

TensorFlow's allocator differs with oneDNN, which it uses on newer CPUs: measure with TF_ENABLE_ONEDNN_OPTS=0 and 1.
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
from multiprocessing import get_context
from multiprocessing.connection import Connection
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
            command = [sys.executable, __file__, "--measure", json.dumps([data, args.ranks, args.repeats])]
            report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            starts.append(start_row(report, count))
            together.append(ranks_row(report, count))
            print(starts[-1], together[-1], sep="\n", flush=True)
            if args.keep is None:
                shutil.rmtree(folder / str(count))
    print("\n| lines | catalog (CPU) | build | first batch | together | private | a file | at most | a file |")
    print("|---|---|---|---|---|---|---|---|---|", *starts, sep="\n")
    print(f"\n| lines, {args.ranks} ranks | files | resident in each | in all (PSS) | private memory | a file |")
    print("|---|---|---|---|---|---|", *together, sep="\n")


def make(folder: Path, count: int) -> dict[str, Any]:
    """Writes a list of `count` lines, its index, and the images of the first positions; returns the `data` section."""
    from PIL import Image

    from tfpipe import World, make_config
    from tfpipe.data.catalog.index import index_fingerprint
    from tfpipe.data.catalog.layout import LAYOUTS
    from tfpipe.data.sources.registry import load_split

    path = folder / "train.txt"
    data = {"train_filelist": str(path.absolute()), "annotations": "index", "shuffle_buffer": 2}
    if (folder / "train.index.parquet").exists():
        return data
    folder.mkdir(parents=True, exist_ok=True)
    classes = min(count, max(1000, count // 650))
    root = f"{folder.absolute()}/{FOLDER}"
    with path.open("w") as file:
        for number in range(count):
            wnid = f"n{number * classes // count + 1440764:08}"
            file.write(f"{root}/{wnid}/{wnid}_{number % 10000}.JPEG\n")
    config = make_config({"data": data | {"annotations": "none"}}).data
    clock, cpu_s = time.perf_counter(), time.process_time()
    split = load_split(config, "train", World())
    catalog = split.catalog
    clock, cpu_s = time.perf_counter() - clock, time.process_time() - cpu_s
    print(f"{count:,} lines: read, and made files of, in {clock:.1f} s, CPU {cpu_s:.1f} s", flush=True)
    jpeg = BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), np.uint8)
    Image.fromarray(pixels).resize((500, 375)).save(jpeg, "JPEG", quality=85)
    (folder / "one.jpg").write_bytes(jpeg.getvalue())
    for item in split.order.items(np.arange(min(count, READY_POSITIONS))).tolist():
        image = Path(catalog.paths[item])
        image.parent.mkdir(parents=True, exist_ok=True)
        if not image.exists():
            shutil.copy(folder / "one.jpg", image)
    key = index_fingerprint(catalog.paths, catalog.classes, catalog.labels, LAYOUTS["ilsvrc"])
    write_index(folder / "train.index.parquet", catalog.labels, key)
    return data


def write_index(path: Path, labels: np.ndarray, key: str) -> None:
    """Writes an index of images with a box each, every 8th with two."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tfpipe.data.annotations.cleaning import Boxes
    from tfpipe.data.catalog.index import FINGERPRINT, SCHEMA, box_columns

    names = ("label", "width", "height", "annotated", "boxes", "box_labels", "odd")
    fields = [SCHEMA.field(name) for name in names]
    schema = pa.schema(fields, {FINGERPRINT: key})
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for start in range(0, len(labels), ROWS):
            part = labels[start : start + ROWS]
            images = np.repeat(np.arange(len(part)), 1 + (np.arange(len(part)) % 8 == 0))
            edges = np.tile(np.array([[0.1, 0.1, 0.9, 0.9]], np.float32), (len(images), 1))
            columns = box_columns(Boxes(images, edges, part[images]), len(part))
            sides, odd = np.full(len(part), 500, np.int32), pa.nulls(len(part), SCHEMA.field("odd").type)
            columns |= {"label": part, "width": sides, "height": sides * 3 // 4, "odd": odd}
            table = pa.table({**columns, "annotated": np.ones(len(part), bool)}, schema=schema)
            writer.write_table(table)


def measure(data: dict[str, Any], ranks: int, repeats: int) -> dict[str, Any]:
    """Returns what processes report that are forked from one that has imported TensorFlow and nothing else.

    A process without data, the first start with the index, starts one at a time, and ranks at the same time.
    """
    import tensorflow  # noqa: F401

    with Forked(None) as nothing:
        report = {"without": nothing.answer()}
    with Forked(data) as first:  # makes files of the index
        report["first"] = first.answer()
    report["starts"] = []
    for _ in range(repeats):
        with Forked(data) as process:
            report["starts"].append(process.answer())
    processes = [Forked(data, rank, ranks) for rank in range(ranks)]
    for wait_for in (Forked.answer, Forked.read_all):
        for process in processes:
            wait_for(process)
    report["ranks"] = [process.measure() for process in processes]
    for process in processes:
        process.close()
    return report


class Forked:
    """A process that takes a first batch, and then does as it is told."""

    def __init__(self, data: dict[str, Any] | None, rank: int = 0, size: int = 1) -> None:
        context = get_context("fork")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=one, args=(theirs, data, rank, size))
        self.process.start()

    def answer(self) -> dict[str, Any]:
        """Returns the next report of the process, with the most anonymous memory that it had until then."""
        status, most_bytes = Path(f"/proc/{self.process.pid}/status"), 0
        while not self.connection.poll(0.002):
            most_bytes = max(most_bytes, figures(status.read_text().splitlines()).get("RssAnon", 0))
        return {**self.connection.recv(), "most_bytes": most_bytes}

    def read_all(self) -> dict[str, Any]:
        """Has the process read the whole catalog."""
        self.connection.send("read all")
        return self.answer()

    def measure(self) -> dict[str, Any]:
        """Returns what the process holds now."""
        self.connection.send("measure")
        return self.answer()

    def close(self) -> None:
        """Ends the process."""
        self.connection.send(None)
        self.process.join()

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def one(connection: Connection, data: dict[str, Any] | None, rank: int, size: int) -> None:
    """Takes the first batch, or only starts TensorFlow if `data` is None; then reports for each line received."""
    times, split, iterator = [clocks()], None, None
    if data is None:
        import tensorflow as tf

        next(iter(tf.data.Dataset.range(3).map(lambda x: x + 1).batch(2)))
    else:
        from tfpipe import World, build_dataset, make_config
        from tfpipe.data.sources.registry import load_split

        config, world = make_config({"data": data}), World(rank, size)
        split = load_split(config.data, "train", world)
        times.append(clocks())
        dataset = build_dataset(config, "train", world, data=split)
        times.append(clocks())
        iterator = iter(dataset)
        images, _ = next(iterator)
        times.append(clocks())
        assert images.shape == (64, 224, 224, 3)
    parts = [tuple(np.subtract(after, before).tolist()) for before, after in pairwise(times)]
    connection.send({"parts": parts, **measured()})
    while (line := connection.recv()) is not None:
        if line == "read all" and split is not None:
            catalog = split.catalog
            paths = catalog.paths
            arrays = (paths.text, paths.offsets, paths.folder, catalog.labels, catalog.annotated, *catalog.boxes)
            for array in (*arrays, catalog.boxes.offsets(len(catalog))):
                array.max(initial=0)
        connection.send(measured())


def start_row(report: dict[str, Any], count: int) -> str:
    """Returns a row of processes that take their first batch, one at a time."""
    starts = np.array([start["parts"] for start in report["starts"]])  # [starts, parts, wall and CPU]
    medians = np.median(np.concatenate([starts, starts.sum(axis=1, keepdims=True)], axis=1), axis=0).tolist()
    cells = [f"{wall_s:.2f} s ({cpu_s:.2f})" for wall_s, cpu_s in medians]
    for name in ("dirty_bytes", "most_bytes"):
        size_bytes = statistics.median(start[name] for start in report["starts"]) - report["without"][name]
        cells.append(memory(size_bytes, count))
    return f"| {count:,} | {' | '.join(cells)} |"


def ranks_row(report: dict[str, Any], count: int) -> str:
    """Returns a row of several ranks that hold the catalog at the same time."""
    ranks = report["ranks"]
    resident_bytes = statistics.median(rank["resident_bytes"] for rank in ranks)
    pss_bytes = sum(rank["pss_bytes"] for rank in ranks)
    private_bytes = statistics.median(rank["private_bytes"] for rank in ranks) - report["without"]["private_bytes"]
    sizes = (ranks[0]["catalog_bytes"], resident_bytes, pss_bytes)
    cells = " | ".join(f"{number / 1e6:.0f} MB" for number in sizes)
    return f"| {count:,} | {cells} | {memory(private_bytes, count)} |"


def memory(size_bytes: float, count: int) -> str:
    """Returns two cells: the bytes, and the bytes for each file."""
    return f"{size_bytes / 1e6:.0f} MB | {size_bytes / count:.1f} bytes"


def measured() -> dict[str, int]:
    """Returns the private bytes of this process, and what it holds of the catalog's files: all, resident, its share."""
    whole = figures(Path("/proc/self/smaps_rollup").read_text().splitlines())
    mapped = {"Size": 0, "Rss": 0, "Pss": 0}
    for name, lines in mappings():
        if ".catalog/" in name:
            mapped = {key: mapped[key] + figures(lines)[key] for key in mapped}
    names = dict(zip(("catalog_bytes", "resident_bytes", "pss_bytes"), mapped.values(), strict=True))
    dirty_bytes = whole["Private_Dirty"]
    return {"private_bytes": whole["Private_Clean"] + dirty_bytes, "dirty_bytes": dirty_bytes, **names}


def clocks() -> tuple[float, float]:
    """Returns the time, and the CPU time of this process, in seconds."""
    return time.perf_counter(), time.process_time()


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
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(measure(*json.loads(chosen.measure))))
    else:
        main(chosen)
