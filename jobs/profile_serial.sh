#!/usr/bin/env bash
# The first half of the comparison: a few steps with one reader and no prefetch, traced. Then jobs/profile_parallel.sh.
#   jobs/profile_serial.sh                                                    in the repository's directory, or in a job
#   LAUNCH="aprun -n 1 -N 1 -d 64 -j 1 --cc depth" CONFIG=my.json jobs/profile_serial.sh
#   jobs/profile_serial.sh --dry-run                                          prints what it would run

CONFIG=${CONFIG:-configs/sample.json}
RUN=${RUN:-runs/profile-serial}     # a new directory; the trace is in it
VENV=${VENV-$PWD/.venv}             # empty: the python on PATH
MODULES=${MODULES:-}
STEPS=${STEPS:-40}
PROFILE=${PROFILE:-15:30}           # the steps that are traced; by then files are open and AUTOTUNE has settled
SET=${SET:-}                        # more of the config: "data.batch_size=128"
LAUNCH=${LAUNCH:-}                  # what starts a process or ranks here; empty: one process, on this machine

set -euo pipefail
source jobs/common.sh

sets=(--set data.num_parallel_readers=1 --set data.prefetch_buffer_size=0)
train_traced
run "${python[@]}" -m tfpipe report "$RUN"
