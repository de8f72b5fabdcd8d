"""Changed files at random through the readers: python -m tests.fuzz xmls 100000; pictures 20000; jpegs 1000000.

Ends with an error at the first that is read as something else; a crash of a library ends the process.
"""

import argparse
import time

from tests.fuzz.jpegs import fuzz_generated, fuzz_jpegs
from tests.fuzz.pictures import fuzz_pictures
from tests.fuzz.xmls import fuzz_xmls

KINDS = {"xmls": fuzz_xmls, "pictures": fuzz_pictures, "jpegs": fuzz_jpegs, "generated": fuzz_generated}

parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
parser.add_argument("kind", choices=KINDS)
parser.add_argument("count", type=int)
parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
args = parser.parse_args()
start = time.monotonic()
outcomes = KINDS[args.kind](args.count, args.seed)
said = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))
print(f"{args.count} {args.kind}, seed {args.seed}, {time.monotonic() - start:.0f} s: {said}")
