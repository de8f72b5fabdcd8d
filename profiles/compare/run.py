"""Times the same work in tfpipe and in its peers: python profiles/compare/run.py LIST --peers-python PYTHON."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from turns import Peer, columns, spread, take_turns
from work import BATCH, SIZE, Work

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
THEIRS = {
    "limit": "the limit: one thread, times the CPUs",
    "spdl": "SPDL, simplejpeg + OpenCV",
    "spdl_fastest": "SPDL, simplejpeg's fastest settings + OpenCV",
    "grain": "Grain, simplejpeg + OpenCV",
    "torch": "torch DataLoader, simplejpeg + OpenCV",
    "dali": "DALI on the CPU",
}
LABELS = {**THEIRS, **OURS}
TOLERANCE = 2.0  # levels of 255: the tutorial's resize samples other points


def main(args: argparse.Namespace) -> None:
    """Prints the table."""
    # Otherwise the peers would outlive it, stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    with tempfile.TemporaryDirectory() as folder:
        work = prepare(args, Path(folder))
        peers: list[Peer] = []
        try:
            passes = {}
            for name in ["limit", *(name for name in args.peers if name != "limit")]:
                python, module = (sys.executable, "chains") if name in OURS else (args.peers_python, "peers")
                command = [python, str(HERE / "worker.py"), module, name, str(work)]
                peers.append(Peer(name, command, Path(folder) / f"{name}.log"))
                passes[name] = peers[-1].answer()
                print(f"{name}: one pass gives {passes[name]}", file=sys.stderr, flush=True)
            check(passes)
            turns = take_turns(peers, args.turns, args.seconds)
        finally:
            for peer in peers:
                peer.end()
    first = passes["limit"]
    print(f"{first['images']:,} images give {first['crops']:,} crops; ", end="")
    print(f"{args.turns} turns of {args.seconds:g} s, {args.threads} CPUs.\n")
    print(table(turns, args.threads))
    if args.json:
        args.json.write_text(json.dumps({"passes": passes, "turns": turns}, indent=2) + "\n")


def prepare(args: argparse.Namespace, folder: Path) -> Path:
    """Writes the work down, and makes the index."""
    data = {"train_filelist": str(args.list), "test_filelist": str(args.list), "test_crop": "boxes"}
    data |= {"crop": "boxes", "crop_image_size": SIZE, "batch_size": BATCH}
    config = folder / "config.json"
    config.write_text(json.dumps({"data": data}))
    index = [sys.executable, "-m", "tfpipe", "index", "-c", str(config), "--set", f"data.index={folder}"]
    subprocess.run([*index, "--split", "train"], check=True, stdout=sys.stderr)
    catalog = load_split(load_config(config, ["data.annotations=xml"]).data, "train", World()).catalog
    files = [(path, catalog.annotation(item)) for item, path in enumerate(catalog.paths)]
    random.Random(0).shuffle(files)
    work = folder / "work.json"
    work.write_text(json.dumps(Work(files, 1, args.threads, str(config), str(folder))._asdict()))
    return work


def check(passes: dict[str, dict[str, float]]) -> None:
    """All peers must have done the same."""
    expected = passes["limit"]
    for name, each in passes.items():
        if each["crops"] != expected["crops"] or abs(each["mean"] - expected["mean"]) > TOLERANCE:
            sys.exit(f"{LABELS[name]} does other work: {each} instead of {expected}")


def table(turns: list[dict[str, dict[str, float]]], cpus: int) -> str:
    """In Markdown, fastest first."""

    def row(name: str) -> str:
        each = figures[name]
        of_cpu = f"{each.each / figures['limit'].each:.2f}"
        spreads = f"{spread(each.ratios, '.2f')} | {of_cpu} | {spread(each.rates, '.0f')}"
        return f"| {LABELS[name]} | {spreads} | {each.each:.0f} | {each.busy:.2f} |"

    figures = {name: columns(turns, name, "limit", cpus) for name in turns[0]}
    names = sorted(figures, key=lambda name: median(figures[name].rates), reverse=True)
    titles = [
        "",
        "of the limit, median (min to max)",
        "by CPU time",
        "crops/s, median (min to max)",
        "crops per CPU s",
        "CPUs busy",
    ]
    head = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    return "\n".join([*head, *map(row, names)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "list", type=lambda path: Path(path).absolute(), help="filelist of images, as `tfpipe filelist` writes it"
    )
    parser.add_argument("--peers-python", required=True, help="a Python with requirements.txt installed")
    parser.add_argument("--peers", nargs="+", choices=LABELS, default=list(LABELS))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
