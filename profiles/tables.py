"""Tables in a bucket and on the Hub, cold and warm: Parquet with bytes and COCO's JSON, against local files.

    python profiles/tables.py LIST DIR

LIST is a filelist of class folders; DIR receives the tables, the copies and the caches. The bucket is moto's S3 with
50 ms a request, the Hub a stand-in (tests/support/hub.py), each in a process of its own. An epoch counts from the
opening of the data on, all its images as crops of 224x224: cold with nothing on the disk, warm with what the cold one
left there; "later" are three epochs after another warm one. Ways of Parquet: "copied" as a whole, without
`data.remote.cache`, and "row groups", with it. Each turn measures all ways. Prints medians of images per second, and of
images per second of this process's CPU time, ratios turn by turn to the local files, and the megabytes on the disk.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sources import KEYS, Rate, config, measured, serve, show

ROOT = Path(__file__).resolve().parents[1]
BUCKET, REPOSITORY = "tables", "owner/tables"
FILES, GROUP = 4, 50


def main() -> None:
    """Measures all ways, or serves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("list", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--latency-ms", type=float, default=50, help="of the bucket's requests [%(default)s]")
    parser.add_argument("--only", nargs="+", help='ways besides the local ones, e.g. "Parquet S3 copied" [all]')
    parser.add_argument("--serve", choices=("s3", "hub"), help="only serves DIR, until it is ended")
    args = parser.parse_args()
    if args.serve == "s3":
        serve(args.latency_ms / 1000)
    elif args.serve == "hub":
        serve_hub(args.out)
    else:
        compare(args)


def compare(args: argparse.Namespace) -> None:
    """Prints a line for each way."""
    data = args.out.resolve() / "data"
    if not data.exists():
        write(args.list.resolve(), data)
    count = len(args.list.read_text().split())
    with served("s3", args, data) as s3, served("hub", args, data) as hub:
        upload(data, s3)
        options = {"endpoint_url": s3, "client_kwargs": {"region_name": "us-east-1"}, **KEYS}
        places = {"local": (str(data), {}), "S3": (f"s3://{BUCKET}", options)}
        places["Hub"] = f"hf://datasets/{REPOSITORY}", {"endpoint": hub, "token": False}
        for kind in ("Parquet", "COCO"):
            rates: dict[str, list[Rate]] = {}
            held: dict[str, float] = {}
            for turn in range(args.turns):
                for place, (root, how) in places.items():
                    forms = ["copied", "row groups"] if kind == "Parquet" and place != "local" else [""]
                    for form in forms:
                        name = " ".join(filter(None, (kind, place, form)))
                        if place != "local" and args.only and name not in args.only:
                            continue
                        # A folder of its own, since the process keeps caches open.
                        left = args.out.resolve() / f"left-{turn}" / name
                        shutil.rmtree(left, ignore_errors=True)
                        chosen = config_of(kind, root, left, how, cache=form != "copied" and place != "local")
                        for state in ("cold", "warm", "later"):
                            measure = later if state == "later" else epoch
                            rates.setdefault(f"{name}, {state}", []).append(measure(chosen, count))
                        held[name] = on_disk(left)
                        shutil.rmtree(left, ignore_errors=True)
            for state in ("warm", "later"):
                show(rates, f"{kind} local, {state}")
            print({name: f"{size / 1e6:.0f} MB" for name, size in held.items()}, flush=True)


def config_of(kind: str, root: str, left: Path, options: dict[str, Any], *, cache: bool) -> Any:
    """Returns the config of a table below `root` that leaves files in the folder `left`."""
    remote = {"options": options, "cache": str(left / "cache") if cache else None}
    about: dict[str, Any] = {"index": str(left / "index"), "remote": remote}
    if kind == "Parquet":
        return config(source={"kind": "table", "path": f"{root}/parquet"}, crop="center", **about)
    source = {"kind": "coco", "path": f"{root}/instances.json", "images": f"{root}/images"}
    return config(source=source, targets="boxes", **about)


def epoch(chosen: Any, count: int) -> Rate:
    """Returns the rate of an epoch from the opening of the data on."""
    from tfpipe import World, build_dataset
    from tfpipe.data.sources.registry import load_split

    batches: list[Iterator[Any]] = []

    def take() -> int:
        if not batches:
            batches.append(iter(build_dataset(chosen, data=load_split(chosen.data, "train", World()))))
        return len(next(batches[0])[0])

    return measured(take, count)


def later(chosen: Any, count: int) -> Rate:
    """Returns the rate of three epochs that follow one."""
    from tfpipe import build_dataset

    batches, seen = iter(build_dataset(chosen)), 0
    while seen < count:
        seen += len(next(batches)[0])
    return measured(lambda: len(next(batches)[0]), 3 * count)


def on_disk(folder: Path) -> float:
    """Returns the bytes that the files in a folder occupy; holes occupy none."""
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())


def write(filelist: Path, out: Path) -> None:
    """Writes the images of a list as FILES Parquet files with row groups of GROUP, as COCO's JSON, and as files."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    paths = [filelist.parent / line for line in filelist.read_text().split()]
    classes = sorted({path.parent.name for path in paths})
    (out / "parquet").mkdir(parents=True)
    (out / "images").mkdir()
    images, objects = [], []
    for number, path in enumerate(paths):
        name = f"{number:06}.jpg"
        shutil.copyfile(path, out / "images" / name)
        width, height = Image.open(path).size
        images.append({"id": number, "file_name": name, "width": width, "height": height})
        about = {"id": number, "image_id": number, "category_id": classes.index(path.parent.name), "iscrowd": 0}
        objects.append({**about, "bbox": [width / 4, height / 4, width / 2, height / 2]})
    categories = [{"id": number, "name": name} for number, name in enumerate(classes)]
    about = {"images": images, "annotations": objects, "categories": categories}
    (out / "instances.json").write_text(json.dumps(about))
    for number in range(FILES):
        part = paths[number * len(paths) // FILES : (number + 1) * len(paths) // FILES]
        rows = {"image": [path.read_bytes() for path in part], "label": [path.parent.name for path in part]}
        pq.write_table(pa.table(rows), out / f"parquet/train-{number}.parquet", row_group_size=GROUP)


@contextmanager
def served(kind: str, args: argparse.Namespace, folder: Path) -> Iterator[str]:
    """Serves a folder in a process of its own; yields its address."""
    command = [sys.executable, __file__, str(args.list), str(folder), "--serve", kind]
    command += ["--latency-ms", str(args.latency_ms)]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()


def serve_hub(folder: Path) -> None:
    """Serves a folder as a data set of the Hub until it is ended; prints its address."""
    sys.path.insert(0, str(ROOT))
    from tests.support.hub import hub

    with hub(folder, REPOSITORY) as address:
        print(address, flush=True)
        while True:
            time.sleep(3600)


def upload(folder: Path, endpoint: str) -> None:
    """Puts all files of a folder into the bucket."""
    import boto3

    keys = {"aws_access_key_id": KEYS["key"], "aws_secret_access_key": KEYS["secret"]}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    client.create_bucket(Bucket=BUCKET)

    def put(file: Path) -> None:
        client.put_object(Bucket=BUCKET, Key=str(file.relative_to(folder)), Body=file.read_bytes())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, filter(Path.is_file, folder.rglob("*"))))


if __name__ == "__main__":
    main()
