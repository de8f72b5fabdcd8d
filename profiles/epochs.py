"""Whether a long run keeps its memory, threads and files, with test passes and checkpoints; looked at from outside.

python profiles/epochs.py -c CONFIG [--epochs 30]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

TRAIN = Path(__file__).resolve().parent.parent / "train.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, required=True, help="the JSON config")
    parser.add_argument("--epochs", type=int, default=30, help="[%(default)s]")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of train.py")
    args = parser.parse_args()
    settings = [*args.set, f"training.epochs={args.epochs}", "training.checkpoint.every_steps=25"]
    flags = [word for setting in settings for word in ("--set", setting)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(TRAIN), "-c", str(args.config), "-l", folder, *flags]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        print("epoch  memory_mb  threads  files")
        seen = {}
        while process.poll() is None:
            time.sleep(0.05)
            epoch = epochs(Path(folder) / "metrics.jsonl")
            if epoch and epoch not in seen:
                with suppress(OSError, KeyError):  # it ends at this moment
                    seen[epoch] = look(process.pid)
                    print(f"{epoch:5}  {seen[epoch][0]:9.0f}  {seen[epoch][1]:7}  {seen[epoch][2]:5}", flush=True)
    if process.returncode or not seen:
        sys.exit(f"training has ended with {process.returncode}, {len(seen)} epochs were seen")
    # Short epochs may end unseen, two at a time.
    early, last = min((epoch for epoch in seen if epoch >= 3), default=max(seen)), max(seen)
    print(f"memory after epoch {last}: {seen[last][0] / seen[early][0]:.3f} of that after epoch {early}")


def epochs(metrics: Path) -> int:
    """That are complete."""
    if not metrics.exists():
        return 0
    lines = [line for line in metrics.read_text().splitlines() if line.endswith("}")]
    return max((each["epoch"] for each in map(json.loads, lines) if "loss" in each), default=0)


def look(pid: int) -> tuple[float, int, int]:
    """Resident memory in 10^6 bytes, threads, and open files."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1000, int(status["Threads"]), len(list(Path(f"/proc/{pid}/fd").iterdir()))


if __name__ == "__main__":
    main()
