"""One reader against the default, on storage that is 20 ms late: two training runs, traced, and what report says.

    make train    # makes the sample
    python profiles/serial_parallel.py [-c configs/sample.json] [--delay-ms 20] [--out profiles]

Writes serial.txt and parallel.txt to --out; runs and traces go to runs/.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERIAL = ("data.num_parallel_readers=1", "data.prefetch_buffer_size=0")


def main() -> None:
    """Trains twice, and reports on both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-c", "--config", type=Path, default=ROOT / "configs" / "sample.json")
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=ROOT / "profiles")
    parser.add_argument("--steps", type=int, default=40, help="of each run [%(default)s]")
    parser.add_argument("--traced", default="15:30", help="steps that are traced [%(default)s]")
    args = parser.parse_args()
    os.environ["TFPIPE_STORAGE_DELAY_MS"] = str(args.delay_ms)
    runs = {name: Path("runs") / f"{name}-late" for name in ("serial", "parallel")}
    for name, folder in runs.items():
        shutil.rmtree(folder, ignore_errors=True)
        flags = [word for each in (SERIAL if name == "serial" else ()) for word in ("--set", each)]
        train = ("-c", args.config, "-l", folder, "-n", args.steps, "--profile", args.traced, *flags)
        _run(ROOT / "train.py", *train)
        (args.out / f"{name}.txt").write_text(_run("-m", "tfpipe", "report", folder))
    print(_run("-m", "tfpipe", "report", *runs.values()))


def _run(*words: object) -> str:
    done = subprocess.run([sys.executable, *map(str, words)], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"failed: python {' '.join(map(str, words))}")
    return done.stdout


if __name__ == "__main__":
    main()
