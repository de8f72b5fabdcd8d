"""File operations of a start on the data: python profiles/scale/operations.py [--images 400] [--ranks 2].

Generates a data set in ImageNet's layout, and starts ranks under mpirun and strace, each of which loads the catalog.
Counts the operations on the list's folder and the data, by rank, without an index, with one, and with the files that
ranks map; and those of `tfpipe index`. Needs strace.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from needs import need_programs

CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)")
KINDS = {
    "openat": "open", "open": "open", "getdents64": "list", "newfstatat": "stat", "statx": "stat", "stat": "stat",
    "lstat": "stat", "access": "stat", "faccessat2": "stat",
}  # fmt: skip
START = """
import sys
from tfpipe import World, make_config
from tfpipe.data.catalog import table
from tfpipe.data.sources.registry import load_split
table.SMALL_BYTES = int(sys.argv[2])
load_split(make_config({"data": {"train_filelist": sys.argv[1]}}).data, "train", World.mpi())
"""


def main(args: argparse.Namespace) -> None:
    """Prints a table of operations by rank."""
    need_programs("strace", "mpirun", advice="apt-get install strace, and an MPI")
    from tfpipe.data.catalog.filelist import write_filelist
    from tfpipe.prepare.trees import scan
    from tfpipe.tools.sample.sample import write_sample

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_sample(folder / "tree", images=args.images, val_images=8, scale=0.2)
        write_filelist(folder / "train.txt", scan(folder / "tree", show=False)["train"])
        (folder / "config.json").write_text('{"data": {"train_filelist": "train.txt"}}')
        (folder / "start.py").write_text(START)
        held, shared = "1000000000", "0"
        index = [sys.executable, "-m", "tfpipe", "index", "-c", str(folder / "config.json")]
        print("| | rank | open a list, index or catalog | list a folder | stat | open an image or XML |")
        print("|---|---|---|---|---|---|")
        start = [sys.executable, str(folder / "start.py"), str(folder / "train.txt")]
        show(folder, "without an index", [*start, held], args)
        show(folder, "tfpipe index", [*index, "--processes", "1"], args)
        for name, small in (("with an index", held), ("that makes the files", shared), ("that maps the files", shared)):
            show(folder, name, [*start, small], args)


def show(folder: Path, name: str, command: list[str], args: argparse.Namespace) -> None:
    """Runs a command on each rank, and prints a row of each."""
    trace = ["strace", "-f", "-y", "-qq", "-e", "trace=%file,getdents64", "-o", f"{folder}/trace-$OMPI_COMM_WORLD_RANK"]
    words = " ".join([*trace, *(f"'{word}'" for word in command)])
    ranks = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(args.ranks), "sh", "-c", words]
    subprocess.run(ranks, check=True, stdout=subprocess.DEVNULL)
    for rank in range(args.ranks):
        counts = count(folder / f"trace-{rank}", folder)
        cells = [counts[kind] for kind in ("open", "list", "stat", "open image")]
        print(f"| {name} | {rank} | {' | '.join(map(str, cells))} |", flush=True)


def count(trace: Path, folder: Path) -> Counter[str]:
    """Returns the number of operations of each kind on files in `folder`, without the program's own."""
    counts: Counter[str] = Counter()
    for line in trace.read_text(errors="replace").splitlines():
        call = CALL.match(line)
        if call is None or str(folder) not in line or f"{folder}/start.py" in line or f"{folder}/trace" in line:
            continue
        kind = KINDS.get(call[1])
        is_data = kind == "open" and "O_DIRECTORY" not in line and re.search(r"\.(JPEG|xml)\"", line)
        if kind is not None and not (kind == "open" and "O_DIRECTORY" in line):
            counts["open image" if is_data else kind] += 1
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--ranks", type=int, default=2)
    main(parser.parse_args())
