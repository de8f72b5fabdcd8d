"""Times the same work in tfpipe and in its peers: python profiles/compare/run.py LIST --peers-python PYTHON.

Each peer is a process that lives through all turns; between its turns it is stopped (SIGSTOP), so that it neither
takes the CPU from another nor fills its buffers ahead of its next turn.
"""

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

from work import BATCH, SIZE, Work

from tfpipe import World, load_config
from tfpipe.data.catalog import load_catalog

HERE = Path(__file__).parent
OURS = {
    "tfpipe": "tfpipe",
    "tfpipe_index": "tfpipe, with an index",
    "tutorial": "the tutorial's chain, 8 readers",
    "tutorial_serial": "the tutorial's chain, serial",
}
THEIRS = {
    "limit": "the limit: one thread, times the CPUs",
    "spdl": "SPDL, simplejpeg + OpenCV",
    "grain": "Grain, simplejpeg + OpenCV",
    "torch": "torch DataLoader, simplejpeg + OpenCV",
    "dali": "DALI on the CPU",
}
LABELS = {**THEIRS, **OURS}
TOLERANCE = 2.0  # levels of 255: the tutorial's resize samples other points


class Peer:
    """One of the processes."""

    def __init__(self, name: str, python: str, work: Path, log: Path) -> None:
        module = "chains" if name in OURS else "peers"
        self.name, self._log = name, log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, str(HERE / "worker.py"), module, name, str(work)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that a signal reaches its workers, and counts of CPU time only them
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            )

    def answer(self, seconds: float | None = None) -> dict[str, float]:
        """To `seconds` of work, or to the first pass."""
        if seconds is not None:
            print(seconds, file=self._process.stdin, flush=True)
            os.killpg(self._process.pid, signal.SIGCONT)
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{LABELS[self.name]}: it ended:\n{self._log.read_text(errors='replace')[-2000:]}")
        os.killpg(self._process.pid, signal.SIGSTOP)
        return json.loads(line)

    def end(self) -> None:
        """With its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


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
                python = sys.executable if name in OURS else args.peers_python
                peers.append(Peer(name, python, work, Path(folder) / f"{name}.log"))
                passes[name] = peers[-1].answer()
                print(f"{name}: one pass gives {passes[name]}", file=sys.stderr, flush=True)
            check(passes)
            turns = []
            for turn in range(args.turns + 1):
                result = {peer.name: peer.answer(args.seconds) for peer in peers}
                rates = {name: round(each["crops"] / each["seconds"]) for name, each in result.items()}
                print(f"turn {turn}: {rates}", file=sys.stderr, flush=True)
                if turn:  # the first is for AUTOTUNE and the page cache
                    turns.append(result)
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
    index = [sys.executable, "-m", "tfpipe.cli", "index", "-c", str(config), "--set", f"data.index={folder}"]
    subprocess.run([*index, "--split", "train"], check=True, stdout=sys.stderr)
    catalog = load_catalog(load_config(config, ["data.annotations=xml"]).data, "train", World())
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

    def rates(name: str) -> list[float]:
        factor = cpus if name == "limit" else 1
        return [factor * turn[name]["crops"] / turn[name]["seconds"] for turn in turns]

    def row(name: str) -> str:
        ratios = [rate / limit for rate, limit in zip(rates(name), rates("limit"), strict=True)]
        busy = median(turn[name]["cpu_seconds"] / turn[name]["seconds"] for turn in turns)
        each = median(turn[name]["crops"] / turn[name]["cpu_seconds"] for turn in turns)
        spreads = f"{_spread(ratios, '.2f')} | {_spread(rates(name), '.0f')}"
        return f"| {LABELS[name]} | {spreads} | {each:.0f} | {busy:.2f} |"

    names = sorted(turns[0], key=lambda name: median(rates(name)), reverse=True)
    columns = ["", "of the limit, median (min to max)", "crops/s, median (min to max)", "crops per CPU s", "CPUs busy"]
    head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*head, *map(row, names)])


def _spread(values: list[float], style: str) -> str:
    return f"{median(values):{style}} ({min(values):{style}} to {max(values):{style}})"


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
