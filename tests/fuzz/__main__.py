"""Changed files at random through the readers: python -m tests.fuzz xmls 100000; pictures 20000; jpegs 1000000.

`packs 10000`, `catalogs`, `tables` and `states` damage and forge what tfpipe has stored.
`sanitized 3600` decodes changed JPEGs under sanitizers for 3,600 seconds of CPU time; `stored 3600` gives those four,
and pictures, to a tfpipe whose libraries have sanitizers, for 3,600 seconds.
`folder 4000 --folder DIR` decodes the JPEGs of a folder, at most 4,000, as they are.

Ends with an error at the first that is read as something else; a crash of a library ends the process.
"""

import argparse
import time
from pathlib import Path

from tests.fuzz.jpegs import compare_folder, fuzz_jpegs
from tests.fuzz.pictures import fuzz_pictures
from tests.fuzz.sanitized import fuzz_sanitized, fuzz_stored
from tests.fuzz.stored import fuzz_catalogs, fuzz_packs, fuzz_states, fuzz_tables
from tests.fuzz.xmls import fuzz_xmls

KINDS = {
    "xmls": fuzz_xmls,
    "pictures": fuzz_pictures,
    "jpegs": fuzz_jpegs,
    "sanitized": fuzz_sanitized,
    "packs": fuzz_packs,
    "catalogs": fuzz_catalogs,
    "tables": fuzz_tables,
    "states": fuzz_states,
    "stored": fuzz_stored,
}

parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
parser.add_argument("kind", choices=[*KINDS, "folder"])
parser.add_argument("count", type=int)
parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
parser.add_argument("--folder", type=Path, help="where the JPEGs of `folder` are")
args = parser.parse_args()
if (args.kind == "folder") != (args.folder is not None):
    parser.error("--folder goes with the kind folder, and only with it")
start = time.monotonic()
outcomes = compare_folder(args.folder, args.count) if args.folder else KINDS[args.kind](args.count, args.seed)
said = ", ".join(f"{name} {count}" for name, count in sorted(outcomes.items()))
print(f"{args.count} {args.kind}, seed {args.seed}, {time.monotonic() - start:.0f} s: {said}")
