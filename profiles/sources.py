"""Where the same images are read from: loose files, tar shards, an archive, a table with bytes, packed data, a bucket.

    python profiles/sources.py formats LIST DIR    # loose files, tar, archive, Parquet with bytes, pack --kind original
    python profiles/sources.py bucket LIST DIR     # crops of 224x224 in an S3 (moto) with 50 ms a request

LIST is a filelist in ImageNet's layout, e.g. that of `tfpipe sample`; DIR receives what is made of it. Interleaved:
each turn builds every pipeline from scratch. Prints medians of crops per second, and of crops per second of this
process's CPU time, with ratios turn by turn.
"""

import argparse
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
BUCKET = "packed"
# Bytes per block that hold a whole shard.
WHOLE = 2**26
KEYS = {"key": "testing", "secret": "testing"}
SIZE = {"crop_image_size": [224, 224], "batch_size": 64}


class Rate(NamedTuple):
    """Crops per second, and per second of CPU time."""

    wall: float
    cpu: float


def main() -> None:
    """Runs one of the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("formats", "bucket", "serve"))
    parser.add_argument("list", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--crops", type=int, default=4000, help="of each measurement [%(default)s]")
    parser.add_argument("--latency-ms", type=float, default=50, help="of the bucket's requests [%(default)s]")
    parser.add_argument("--without", nargs="*", default=[], help='ways to leave out, e.g. "single records"')
    args = parser.parse_args()
    if args.what == "serve":
        serve(args.latency_ms / 1000)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    (formats if args.what == "formats" else bucket)(args)


def config(**data: Any) -> Any:
    """Returns a config of this `data` section."""
    from tfpipe import make_config

    return make_config({"data": {**SIZE, **data}})


def listed(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the `data` section of the loose files, with their index."""
    from tfpipe import World
    from tfpipe.prepare.index import build_index

    data = {"train_filelist": str(args.list.resolve()), "index": str(args.out / "index")}
    build_index(config(**data).data, "train", World())
    return data


def formats(args: argparse.Namespace) -> None:
    """Compares tar shards, an archive, a table with bytes and packed files with loose files."""
    from tfpipe import World
    from tfpipe.data.sources.registry import load_split
    from tfpipe.prepare.pack import PackPlan, pack

    loose = listed(args)
    split = load_split(config(**loose).data, "train", World())
    tars, table, packed = args.out / "tars", args.out / "table.parquet", args.out / "original"
    archive = args.out / "archive" / "ILSVRC2012_img_train.tar"
    if not tars.exists():
        tars.mkdir()
        write(split.catalog, tars, table)
        archive.parent.mkdir()
        write_archive(split.catalog, archive)
    pack(config(**loose).data, "train", packed, PackPlan(), World())
    sources = {"tar": ("webdataset", tars), "archive": ("archive", archive.parent)}
    sources |= {"parquet": ("table", table), "packed": ("packed", packed)}
    compared = {"files": loose} | {
        name: {"source": {"kind": kind, "path": str(path)}, "index": loose["index"]}
        for name, (kind, path) in sources.items()
    }
    rates: dict[str, list[Rate]] = {name: [] for name in compared}
    for turn in range(args.turns):
        for name in list(compared)[:: 1 if turn % 2 else -1]:
            rates[name].append(rate(config(**compared[name]), args.crops))
    show(rates, "files")
    show({name: rates[name] for name in ("packed", "tar", "archive", "parquet")}, "packed")


def write(catalog: Any, tars: Path, table: Path) -> None:
    """Writes the images with their labels and boxes as ten tar shards and as a table with row groups of 100."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    offsets, rows = catalog.boxes.offsets(len(catalog)), []
    for item in range(len(catalog)):
        boxes = catalog.boxes.boxes[offsets[item] : offsets[item + 1]][:, [1, 0, 3, 2]]
        whole = not catalog.annotated[item]
        label = catalog.classes[catalog.labels[item]]
        image = Path(catalog.paths[item]).read_bytes()
        rows.append({"image": image, "label": label, "boxes": [] if whole else boxes.tolist()})
    pq.write_table(pa.Table.from_pylist(rows), table, row_group_size=100)
    for shard, part in enumerate(np.array_split(np.arange(len(rows)), 10)):
        with tarfile.open(tars / f"train-{shard:04}.tar", "w") as tar:
            for item in part.tolist():
                about = {key: value for key, value in rows[item].items() if key != "image"}
                for ending, contents in (("json", json.dumps(about).encode()), ("jpg", rows[item]["image"])):
                    member = tarfile.TarInfo(f"{item:08}.{ending}")
                    member.size = len(contents)
                    tar.addfile(member, io.BytesIO(contents))


def write_archive(catalog: Any, path: Path) -> None:
    """Writes the images and their XMLs as a tar file of a tar file for each class."""
    import numpy as np

    with tarfile.open(path, "w") as outer:
        for number, name in enumerate(catalog.classes):
            class_tar = io.BytesIO()
            with tarfile.open(fileobj=class_tar, mode="w") as inner:
                for item in np.flatnonzero(catalog.labels == number).tolist():
                    for file in filter(os.path.exists, (catalog.paths[item], catalog.annotation(item))):
                        inner.add(file, os.path.basename(file))
            member = tarfile.TarInfo(f"{name}.tar")
            member.size = class_tar.tell()
            class_tar.seek(0)
            outer.addfile(member, class_tar)


def bucket(args: argparse.Namespace) -> None:
    """Compares packed crops in a bucket, cold and warm, with the local ones, and ways to fetch them."""
    import boto3

    from tfpipe import World
    from tfpipe.data.sources.remote import ranges
    from tfpipe.prepare.pack import PackPlan, pack

    packed = args.out / "crops"
    pack(config(**listed(args)).data, "train", packed, PackPlan("crops", 8), World())
    command = [sys.executable, __file__, "serve", ".", ".", "--latency-ms", str(args.latency_ms)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        endpoint = server.stdout.readline().strip()
        keys = {"aws_access_key_id": KEYS["key"], "aws_secret_access_key": KEYS["secret"]}
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        client.create_bucket(Bucket=BUCKET)
        for file in (path for path in packed.iterdir() if path.name[0] != "."):
            client.put_object(Bucket=BUCKET, Key=file.name, Body=file.read_bytes())
        options = {"endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}, **KEYS}

        def at(cache: Path | None, **data: Any) -> Any:
            remote = {"options": options, "cache": None if cache is None else str(cache), **data.pop("remote", {})}
            return config(source={"kind": "packed", "path": f"s3://{BUCKET}"}, remote=remote, **data)

        local, cache = config(source={"kind": "packed", "path": str(packed)}), args.out / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        for way, remote in (("no cache", None), ("cache cold", cache), ("cache warm", cache)):
            print(f"{way}: {compare_epoch(local, at(remote))} batches equal the local ones bit for bit", flush=True)
        alone = {"concurrency": 1}
        one = rate(at(None, remote=alone, num_parallel_readers=1, prefetch_buffer_size=0), 128, warm_up=0)
        print(f"one request at a time: {one.wall:.0f} crops/s")
        chosen = ranges.BLOCK
        blocks = {"blocks of 4 MB": chosen, "blocks of 1 MB": 2**20, "whole shards": WHOLE, "single records": None}
        cold: dict[str, list[Rate]] = {name: [] for name in blocks if name not in args.without}
        for _ in range(args.turns):
            for name in cold:
                block = blocks[name]
                shutil.rmtree(cache, ignore_errors=True)
                ranges.BLOCK = block or chosen
                cold[name].append(first_epoch(at(None if block is None else cache)))
        ranges.BLOCK = chosen
        show(cold, next(iter(cold)))
        for name, rates in cold.items():
            median = statistics.median(found.wall for found in rates)
            print(f"{name}, the first epoch: {median / one.wall:.1f} x one request at a time")
        shutil.rmtree(cache, ignore_errors=True)
        first_epoch(at(cache))
        rates: dict[str, list[Rate]] = {"local": [], "cache warm": []}
        for turn in range(2 * args.turns):
            for name, chosen_config in [("local", local), ("cache warm", at(cache))][:: 1 if turn % 2 else -1]:
                rates[name].append(rate(chosen_config, args.crops))
        show(rates, "local")
    finally:
        server.terminate()
        server.wait()


def compare_epoch(one: Any, other: Any) -> int:
    """Returns the number of an epoch's batches; raises ValueError if two configs do not give the same ones."""
    import numpy as np

    from tfpipe import Loader

    with Loader(one, positions=True) as mine, Loader(other, positions=True) as theirs:
        steps = mine.steps_per_epoch
        for step in range(steps):
            if not all(np.array_equal(a, b) for a, b in zip(next(mine), next(theirs), strict=True)):
                raise ValueError(f"batch {step} differs")
    return steps


def rate(chosen: Any, crops: int, warm_up: int = 5) -> Rate:
    """Returns the rate of a pipeline built from scratch, after some batches."""
    from tfpipe import build_dataset

    batches = iter(build_dataset(chosen))
    for _ in range(warm_up):
        next(batches)
    return measured(lambda: len(next(batches)[1]), crops)


def first_epoch(chosen: Any) -> Rate:
    """Returns the rate of an epoch's crops, from the first request on."""
    from tfpipe import World, build_dataset
    from tfpipe.data.crop_counts import count_crops
    from tfpipe.data.sources.registry import load_split

    split = load_split(chosen.data, "train", World())
    crops = count_crops(split).crops
    batches = iter(build_dataset(chosen, data=split))
    return measured(lambda: len(next(batches)[1]), crops)


def measured(take: Callable[[], int], crops: int) -> Rate:
    """Returns the rate of `take`, which returns a number of crops, over this many at least."""
    start, start_cpu, seen = time.perf_counter(), time.process_time(), 0
    while seen < crops:
        seen += take()
    found = Rate(seen / (time.perf_counter() - start), seen / (time.process_time() - start_cpu))
    print(f"{found.wall:.0f} crops/s, {found.cpu:.0f} of CPU", file=sys.stderr, flush=True)
    return found


def show(rates: dict[str, list[Rate]], base: str) -> None:
    """Prints a line for each way, with its ratio to `base`."""
    for name, found in rates.items():
        medians = [statistics.median(part) for part in zip(*found, strict=True)]
        ratios = [
            statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
            for mine, theirs in zip(zip(*found, strict=True), zip(*rates[base], strict=True), strict=True)
        ]
        print(
            f"{name:16} {medians[0]:8.0f} crops/s (x {ratios[0]:.2f} of {base})   "
            f"{medians[1]:8.0f} crops/s of CPU (x {ratios[1]:.2f})",
            flush=True,
        )


def serve(latency_s: float) -> None:
    """Serves moto's S3 with `latency_s` a request until it is ended; prints its address."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    app = DomainDispatcherApplication(create_backend_app)

    def late(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        time.sleep(latency_s)
        return app(environ, start_response)

    server = make_server("127.0.0.1", 0, late, threaded=True)
    print(f"http://127.0.0.1:{server.port}", flush=True)
    import logging

    logging.getLogger("werkzeug").disabled = True
    server.serve_forever()


if __name__ == "__main__":
    main()
