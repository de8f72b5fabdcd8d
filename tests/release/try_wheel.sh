#!/usr/bin/env bash
# Installs a wheel into an empty environment and uses it as a reader of README does: tests/release/try_wheel.sh WHEEL
set -euo pipefail
wheel=$(realpath "$1")
readme=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../README.md")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

echo "installing $(basename "$wheel") and TensorFlow into an empty environment: a minute or a few"
"${PYTHON:-python3}" -m venv venv
venv/bin/python -m pip --disable-pip-version-check --no-input install -qq "${wheel}[tensorflow]"
export PATH="$folder/venv/bin:$PATH" TF_CPP_MIN_LOG_LEVEL=2
unset PYTHONPATH
pip --disable-pip-version-check check

version=${wheel##*/tfpipe-}
[ "$(tfpipe --version)" = "tfpipe ${version%%-*}" ]
python - "$folder" <<'PYTHON'
import sys
from pathlib import Path

import tfpipe
from tfpipe.native import native

package = Path(tfpipe.__file__).parent
assert package.is_relative_to(Path(sys.argv[1]).resolve()), f"{package} is not the one of the wheel"
native()
assert (package / "py.typed").exists(), "the wheel lacks py.typed"
PYTHON

tfpipe sample train --images 400 --scale 0.25
tfpipe sample val --images 100 --scale 0.25 --seed 1
mkdir flowers
mv train/Data/CLS-LOC/train flowers/train
mv val/Data/CLS-LOC/train flowers/val
python - "$readme" > example.py <<'PYTHON'
import re
import sys
from pathlib import Path

print(re.search(r"^```python\n(.*?)^```$", Path(sys.argv[1]).read_text(), re.MULTILINE | re.DOTALL)[1])
PYTHON
python example.py
echo "$(basename "$wheel"): installed, and README's example trained"
