"""What the annotation index costs: python profiles/index.py build, or python profiles/index.py load.

build: `build_index` of generated XMLs and tiny JPEGs, against lxml alone over the same bytes in memory, in one process
and in several at once, which on cores that share their parts is slower than one in each.
load: time to load an index as large as ImageNet's training list, boxes included.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from multiprocessing import get_context
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lxml import etree
from PIL import Image

from tfpipe import World
from tfpipe.config import DataConfig
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.catalog.filelist import write_filelist
from tfpipe.data.catalog.index import FINGERPRINT, load_index
from tfpipe.prepare.index import build_index
from tfpipe.prepare.trees import scan

IMAGENET = 1_281_167  # training images; those with an XML:
IMAGENET_XMLS = 544_546
CLASSES = 100
XML = """<annotation>
\t<folder>{wnid}</folder>
\t<filename>{wnid}_{number}</filename>
\t<source>
\t\t<database>ImageNet database</database>
\t</source>
\t<size>\n\t\t<width>500</width>\n\t\t<height>375</height>\n\t\t<depth>3</depth>\n\t</size>
\t<segmented>0</segmented>
{objects}</annotation>
"""
OBJECT = """\t<object>
\t\t<name>{wnid}</name>
\t\t<pose>Unspecified</pose>
\t\t<truncated>0</truncated>
\t\t<difficult>0</difficult>
\t\t<bndbox>
\t\t\t<xmin>{left}</xmin>
\t\t\t<ymin>13</ymin>
\t\t\t<xmax>497</xmax>
\t\t\t<ymax>370</ymax>
\t\t</bndbox>
\t</object>
"""


def write_tree(root: Path, count: int) -> DataConfig:
    """`count` images of one object, or for every 8th two, each with its XML: as ImageNet's annotated ones."""
    jpeg = BytesIO()
    Image.new("RGB", (500, 375)).save(jpeg, "JPEG", quality=1)
    for number in range(count):
        wnid = f"n{number * CLASSES // count:08}"
        objects = "".join(OBJECT.format(wnid=wnid, left=number % 300 + each) for each in range(1 + (number % 8 == 0)))
        xml = XML.format(wnid=wnid, number=number, objects=objects).encode()
        for kind, suffix, content in (("Data", "JPEG", jpeg.getvalue()), ("Annotations", "xml", xml)):
            path = root / kind / "CLS-LOC/train" / wnid / f"{wnid}_{number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    write_filelist(root / "train.txt", scan(root, show=False)["train"])
    return DataConfig(train_filelist=root / "train.txt")


def build(args: argparse.Namespace) -> None:
    """In turns: the index with several processes and with one, and two ways to read the same bytes in one."""
    cpus = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        config = write_tree(Path(folder), args.count)
        texts = [path.read_bytes() for path in Path(folder).glob("Annotations/*/*/*/*.xml")]
        size = sum(map(len, texts)) / len(texts)
        ways: dict[str, Callable[[], object] | Together] = {
            f"index, {args.processes} processes": lambda: build_index(config, "train", World(), args.processes),
            "index, 1 process": lambda: build_index(config, "train", World(), 1),
            f"lxml, and what it holds, {args.processes} processes": Together(texts, args.processes),
            "lxml, and what it holds": lambda: [parse_annotation(text, "") for text in texts],
            "lxml alone": lambda: [etree.fromstring(text) for text in texts],
        }
        turns = [{name: measured(work) for name, work in ways.items()} for _ in range(args.repeats)]
    taken = {name: np.array([turn[name] for turn in turns]) for name in ways}
    print(f"{args.count:,} XMLs of {size:.0f} bytes, {cpus} CPUs, median (smallest) of {args.repeats} turns")
    for name, runs in taken.items():
        wall, cpu = np.median(runs, axis=0) / args.count
        print(f"{name}: {1e6 * wall:.1f} us an image ({1e6 * runs[:, 0].min() / args.count:.1f}), CPU {1e6 * cpu:.1f}")
    several, one, together, extracted, alone = (np.median(runs, axis=0) for runs in taken.values())
    print(f"index against lxml, and what it holds, in {args.processes} processes: {together[0] / several[0]:.2f}")
    for name, plain in (("lxml, and what it holds", extracted), ("lxml alone", alone)):
        print(f"index against {name} x {cpus} CPUs: {plain[0] / cpus / several[0]:.2f}; by CPU {plain[1] / one[1]:.2f}")
    print(f"{IMAGENET_XMLS:,} XMLs would take {several[0] * IMAGENET_XMLS / args.count:.0f} s")


class Together:
    """lxml in several processes at once, each with its share of the XMLs in memory."""

    def __init__(self, texts: list[bytes], processes: int) -> None:
        self.shares = [texts[number::processes] for number in range(processes)]

    def measure(self) -> tuple[float, float]:
        """Seconds by the clock from when all are ready until the last has done, and of the processes' CPU time."""
        context = get_context("spawn")
        ready, results = context.Barrier(len(self.shares)), context.Queue()
        processes = [context.Process(target=_parse_share, args=(share, ready, results)) for share in self.shares]
        for process in processes:
            process.start()
        taken = [results.get() for _ in processes]
        for process in processes:
            process.join()
        return max(clock for clock, _ in taken), sum(cpu for _, cpu in taken)


def _parse_share(texts: list[bytes], ready: Barrier, results: Queue) -> None:
    ready.wait()
    results.put(cost(lambda: [parse_annotation(text, "") for text in texts]))


def measured(work: Callable[[], object] | Together) -> tuple[float, float]:
    """As cost."""
    return work.measure() if isinstance(work, Together) else cost(work)


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of this process's CPU time."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - clock, time.process_time() - cpu


def load(args: argparse.Namespace) -> None:
    """An index of many rows, made of one of a thousand by repeating it."""
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        made = build_index(write_tree(Path(folder), 1000), "train", World(), 1)
        small = pq.read_table(made.path)
        table = pa.concat_tables([small] * (args.rows // len(small) + 1)).slice(0, args.rows)
        pq.write_table(table, made.path, compression="zstd")
        key = small.schema.metadata[FINGERPRINT].decode()
        times = [cost(lambda: load_index(made.path, key)) for _ in range(args.repeats)]
        boxes = len(load_index(made.path, key).boxes.labels)
    print(f"{args.rows:,} rows, {boxes:,} boxes: {', '.join(f'{clock:.2f}' for clock, _ in times)} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for run in (build, load):
        command = commands.add_parser(run.__name__)
        command.add_argument("--folder", type=Path, help="where to make the data [the system's temporary folder]")
        command.add_argument("--repeats", type=int, default=5)
        command.set_defaults(run=run)
    commands.choices["build"].add_argument("--count", type=int, default=50_000, help="XMLs [%(default)s]")
    commands.choices["build"].add_argument("--processes", type=int, default=2)
    commands.choices["load"].add_argument("--rows", type=int, default=IMAGENET, help="[%(default)s]")
    chosen = parser.parse_args()
    chosen.run(chosen)
