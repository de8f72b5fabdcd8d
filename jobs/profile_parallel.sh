#!/usr/bin/env bash
# The other half: the same steps as of jobs/profile_serial.sh by default, traced, and a report of both.
#   jobs/profile_parallel.sh                                                  in the repository's directory, or in a job
#   LAUNCH="aprun -n 1 -N 1 -d 64 -j 1 --cc depth" CONFIG=my.json jobs/profile_parallel.sh
#   jobs/profile_parallel.sh --dry-run                                        prints what it would run

CONFIG=${CONFIG:-configs/sample.json}
RUN=${RUN:-runs/profile-parallel}   # a new directory; the trace is in it
SERIAL=${SERIAL:-runs/profile-serial} # of jobs/profile_serial.sh
VENV=${VENV-$PWD/.venv}             # empty: the python on PATH
MODULES=${MODULES:-}
STEPS=${STEPS:-40}
PROFILE=${PROFILE:-15:30}           # the steps that are traced; by then files are open and AUTOTUNE has settled
SET=${SET:-}                        # more of the config: "data.batch_size=128"
LAUNCH=${LAUNCH:-}                  # what starts a process or ranks here; empty: one process, on this machine

set -euo pipefail
source jobs/common.sh

sets=()
train_traced
run "${python[@]}" -m tfpipe report "$SERIAL" "$RUN"
