"""Times the same work in tfpipe and in its peers: python profiles/compare/run.py LIST --peers-python PYTHON.

The work is the boxes of each image; with --work random a RandomResizedCrop of each, mirrored or not; with --work whole
each image whole, 224x224; with --work detect each image whole, 800x800, with its boxes.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parents[1]))
from needs import need_modules
from turns import Peer, columns, exit_when_terminated, spread, take_turns
from work import BATCH, DETECT_BATCH, DETECT_SIZE, RANDOM, SIZE, Work

from tfpipe import World, load_config
from tfpipe.data.sources.registry import load_split

HERE = Path(__file__).parent
OURS = {
    "tfpipe": "tfpipe",
    "tfpipe_index": "tfpipe, with an index",
    "tfpipe_service": "tfpipe, with an index and 2 workers of data.service",
    "tfpipe_graph": "tfpipe, with an index, by TensorFlow's ops",
    "tutorial": "the tutorial's chain, 8 readers",
    "tutorial_serial": "the tutorial's chain, serial",
}
OURS_RANDOM = {
    "loose": "tfpipe, files",
    "loose_entries": "tfpipe, files with entry points",
    "original": "tfpipe, packed files",
    "original_entries": "tfpipe, packed files with entry points",
    "coefficients": "tfpipe, packed coefficients",
}
OURS_WHOLE = {"whole": "tfpipe, files", "keras": "Keras' image_dataset_from_directory"}
OURS_DETECT = {"detect": "tfpipe, with an index"}
LIMIT = {"limit": "the limit: one thread, times the CPUs"}
THEIRS = {
    "spdl": "SPDL, simplejpeg + OpenCV",
    "spdl_fastest": "SPDL, simplejpeg's fastest settings + OpenCV",
    "grain": "Grain, simplejpeg + OpenCV",
    "torch": "torch DataLoader, simplejpeg + OpenCV",
    "dali": "DALI on the CPU",
}
FFCV = {"ffcv": "FFCV, JPEGs", "ffcv_half": "FFCV, half of them as pixels"}
THEIRS_RANDOM = {
    "spdl": "SPDL, simplejpeg's fastest settings + OpenCV",
    "grain": "Grain, simplejpeg's fastest settings + OpenCV",
    "torch": "torch DataLoader, simplejpeg's fastest settings + OpenCV",
    "dali": "DALI on the CPU",
    **FFCV,
}
THEIRS_WHOLE = {"torch": THEIRS_RANDOM["torch"]}
THEIRS_DETECT = {"torch": THEIRS_RANDOM["torch"], "dali": "DALI on the CPU, its reader of COCO"}
LABELS = {
    "boxes": {**LIMIT, **THEIRS, **OURS},
    "random": {**LIMIT, **THEIRS_RANDOM, **OURS_RANDOM},
    "whole": {**LIMIT, **THEIRS_WHOLE, **OURS_WHOLE},
    "detect": {**LIMIT, **THEIRS_DETECT, **OURS_DETECT},
}
# Modules that the peers' Python needs for all rows, and for each.
NEEDED_BY_ALL = {"cv2", "lxml", "numpy", "simplejpeg"}
NEEDED = {name: {name} for name in ("grain", "torch", "spdl", "ffcv")}
NEEDED |= {"spdl_fastest": {"spdl"}, "ffcv_half": {"ffcv"}, "dali": {"nvidia.dali"}}
# Levels of 255. The tutorial's resize samples other points; random crops of one pass differ from those of another.
TOLERANCE = {"boxes": 2.0, "random": 4.0, "whole": 2.0, "detect": 2.0}
# Of the mean edge of a detector's boxes.
EDGE_TOLERANCE_PX = 0.1


def main(args: argparse.Namespace) -> None:
    """Prints the table."""
    exit_when_terminated()
    labels = LABELS[args.work]
    names = ["limit", *(name for name in args.peers or labels if name != "limit")]
    if unknown := set(names) - set(labels):
        raise SystemExit(f"--peers {' '.join(sorted(unknown))}: no peers of --work {args.work}: {', '.join(labels)}")
    modules = NEEDED_BY_ALL.union(*(NEEDED.get(name, set()) for name in names))
    need_modules(args.peers_python, modules, f"install {HERE.name}/requirements.txt there, or name some --peers")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        work, sizes = prepare(args, Path(folder), names)
        peers: list[Peer] = []
        try:
            passes = {}
            for name in names:
                ours = name in OURS | OURS_RANDOM | OURS_WHOLE | OURS_DETECT
                python, module = (sys.executable, "chains") if ours else (args.peers_python, "peers")
                command = [python, str(HERE / "worker.py"), module, name, str(work)]
                peers.append(Peer(name, command, Path(folder) / f"{name}.log"))
                passes[name] = peers[-1].answer()
                print(f"{name}: one pass gives {passes[name]}", file=sys.stderr, flush=True)
            check(passes, args.work)
            turns = take_turns(peers, args.turns, args.seconds)
        finally:
            for peer in peers:
                peer.end()
        images = int(passes["limit"]["images"])
        sizes |= {name: bytes_each(Path(folder), images, f"{name}.beton") for name in FFCV if name in names}
    print(f"{images:,} images give {passes['limit']['crops']:,} crops; ", end="")
    print(f"{args.turns} turns of {args.seconds:g} s, {args.threads} CPUs.\n")
    print(table(turns, args.threads, labels, sizes))
    for line in against_ffcv(turns, labels):
        print(line)
    if args.json:
        args.json.write_text(json.dumps({"passes": passes, "turns": turns, "bytes": sizes}, indent=2) + "\n")


def prepare(args: argparse.Namespace, folder: Path, names: list[str]) -> tuple[Path, dict[str, float]]:
    """Writes the work down, and makes the index, or packs and entry points; returns bytes an image, by peer."""
    data = {"train_filelist": str(args.list), "test_filelist": str(args.list), "test_crop": "boxes"}
    data |= {"crop": "boxes", "crop_image_size": SIZE, "batch_size": BATCH}
    config = folder / "boxes.json"
    config.write_text(json.dumps({"data": data}))
    catalog = load_split(load_config(config, ["data.annotations=none"]).data, "train", World()).catalog
    sizes: dict[str, float] = {}
    if args.work in ("random", "whole"):
        files = [(str(path), "") for path in catalog.paths]
        if args.work == "random":
            sizes = prepare_random(folder, [path for path, _ in files], names)
        else:
            data |= {"crop": "full", "test_crop": "full", "annotations": "none"}
            (folder / "whole.json").write_text(json.dumps({"data": data}))
    else:
        if args.work == "detect":
            data |= {"crop": "full", "test_crop": "full", "crop_image_size": DETECT_SIZE, "batch_size": DETECT_BATCH}
            data |= {"targets": {"kind": "boxes", "max_boxes": "ragged"}, "classes": list(catalog.classes)}
            config = folder / "detect.json"
            config.write_text(json.dumps({"data": data}))
        tfpipe("index", config, "--split", "train", "--set", f"data.index={folder}")
        catalog = load_split(load_config(config, ["data.annotations=xml"]).data, "train", World()).catalog
        files = [(path, catalog.annotation(item)) for item, path in enumerate(catalog.paths)]
    random.Random(0).shuffle(files)
    work = folder / "work.json"
    work.write_text(json.dumps(Work(files, 1, args.threads, str(folder), args.work)._asdict()))
    return work, sizes


def prepare_random(folder: Path, images: list[str], names: list[str]) -> dict[str, float]:
    """Writes the configs of tfpipe's rows, packs and finds entry points; returns bytes an image, by row."""
    files = folder / "list.txt"
    files.write_text("\n".join(images) + "\n")
    loose = {"train_filelist": str(files), "annotations": "none", "crop": "random_resized"}
    loose |= {"crop_image_size": SIZE, "batch_size": BATCH}
    sizes = dict.fromkeys(LABELS["random"], sum(Path(image).stat().st_size for image in images) / len(images))
    for name in (name for name in RANDOM if name in names or name == "loose"):
        kind, _, entries = name.partition("_")
        config, data = folder / f"{name}.json", dict(loose)
        if kind != "loose":
            tfpipe("pack", folder / "loose.json", "--kind", kind, "--out", str(folder / name))
            del data["train_filelist"]
            data["source"] = {"kind": "packed", "path": str(folder / name)}
            sizes[name] = bytes_each(folder / name, len(images))
        elif entries:
            data["index"] = str(folder / "entries")
        config.write_text(json.dumps({"data": data}))
        if entries:
            before = bytes_each(folder, len(images))
            tfpipe("index", config, "--entry-points")
            sizes[name] += bytes_each(folder, len(images)) - before
    return sizes


def tfpipe(command: str, config: Path, *options: str) -> None:
    """Runs a command of tfpipe's, which prints to stderr."""
    call = [sys.executable, "-m", "tfpipe", command, "-c", str(config), *options]
    subprocess.run(call, check=True, stdout=sys.stderr)


def bytes_each(folder: Path, count: int, pattern: str = "*") -> float:
    """Returns the bytes of a folder's files, divided by the number of images."""
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file()) / count


def check(passes: dict[str, dict[str, float]], work: str) -> None:
    """All peers must have done the same."""
    expected = passes["limit"]
    for name, each in passes.items():
        same = each["crops"] == expected["crops"] and each.get("boxes") == expected.get("boxes")
        near = abs(each.get("edge", 0.0) - expected.get("edge", 0.0)) < EDGE_TOLERANCE_PX
        if not same or not near or abs(each["mean"] - expected["mean"]) > TOLERANCE[work]:
            sys.exit(f"{LABELS[work][name]} does other work: {each} instead of {expected}")


def table(turns: list[dict[str, dict[str, float]]], cpus: int, labels: dict[str, str], sizes: dict[str, float]) -> str:
    """In Markdown, fastest first."""

    def row(name: str) -> str:
        each = figures[name]
        of_cpu = f"{each.each / figures['limit'].each:.2f}"
        spreads = f"{spread(each.ratios, '.2f')} | {of_cpu} | {spread(each.rates, '.0f')}"
        size = f" {sizes[name]:,.0f} |" if sizes else ""
        return f"| {labels[name]} | {spreads} | {each.each:.0f} | {each.busy:.2f} |{size}"

    figures = {name: columns(turns, name, "limit", cpus) for name in turns[0]}
    names = sorted(figures, key=lambda name: median(figures[name].rates), reverse=True)
    titles = [
        "",
        "of the limit, median (min to max)",
        "by CPU time",
        "crops/s, median (min to max)",
        "crops per CPU s",
        "CPUs busy",
        *(["bytes an image"] if sizes else []),
    ]
    head = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    return "\n".join([*head, *map(row, names)])


def against_ffcv(turns: list[dict[str, dict[str, float]]], labels: dict[str, str]) -> Iterator[str]:
    """Yields, in Markdown, the ratios of tfpipe's rates to FFCV's in the same turn."""
    rows, peers = ([name for name in names if name in turns[0]] for names in (OURS_RANDOM, FFCV))
    if not rows or not peers:
        return
    yield f"\n| relative to, median (min to max) | {' | '.join(labels[peer] for peer in peers)} |"
    yield "|---" * (1 + len(peers)) + "|"
    for name in rows:
        own, theirs = columns(turns, name, "limit", 1), [columns(turns, peer, "limit", 1) for peer in peers]
        cells = [spread([a / b for a, b in zip(own.rates, each.rates, strict=True)], ".2f") for each in theirs]
        yield f"| {labels[name]} | {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "list", type=lambda path: Path(path).absolute(), help="filelist of images, as `tfpipe filelist` writes it"
    )
    parser.add_argument("--peers-python", required=True, help="a Python with requirements.txt installed")
    parser.add_argument("--work", choices=LABELS, default="boxes", help="crops of each image [%(default)s]")
    parser.add_argument("--peers", nargs="+", metavar="PEER", help=f"of {LABELS} [all]")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, help="for indexes and packs [the folder of temporary files]")
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
