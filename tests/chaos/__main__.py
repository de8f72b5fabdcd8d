"""Random runs with random faults: python -m tests.chaos --runs 200 --seed 0.

Each run uses tiny data, by train.py or by a consumer of a Loader, meets up to three faults, is resumed after each, and
must then have used every crop once. Prints every run that has failed, with its seed; `--runs 1 --seed N --keep` repeats
it and leaves its folder.
"""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from tests.chaos.plan import draw
from tests.chaos.run import Story
from tests.support.commands import announce_server, forget_server
from tests.support.sample import make_sample


def main() -> int:
    """Carries out the runs; returns 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="[%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run, which counts up [%(default)s]")
    parser.add_argument("--keep", action="store_true", help="keep the folder of each run that has failed")
    args = parser.parse_args()
    counts: Counter[str] = Counter()
    failed = []
    base = Path(tempfile.mkdtemp(prefix="tfpipe-chaos-"))
    announce_server()
    try:
        sample = make_sample(base / "sample", images=48, val_images=12)
        for seed in range(args.seed, args.seed + args.runs):
            plan, folder, start = draw(seed), base / str(seed), time.monotonic()
            folder.mkdir()
            story, problem = None, ""
            try:
                story = Story(plan, sample, folder)
                story.carry_out()
            except Exception as error:
                failed.append(seed)
                problem = f"FAILED: {error or type(error).__name__}"[:2000]
                if not isinstance(error, AssertionError):
                    traceback.print_exc()
            counts.update(plan.labels() + (story.ends if story else []))
            print(f"{time.monotonic() - start:.0f} s, {plan}\n  {story.ends if story else ''} {problem}", flush=True)
            if not (problem and args.keep):
                shutil.rmtree(folder)
            elif problem:
                print(f"  kept: {folder}", flush=True)
    finally:
        forget_server()
        if not (failed and args.keep):
            shutil.rmtree(base)
    for name, count in sorted(counts.items()):
        print(f"{count:5} {name}")
    print(f"{args.runs} runs, {len(failed)} failed{': seeds ' + str(failed) if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
