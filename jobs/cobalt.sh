#!/usr/bin/env bash
# Trains under Cobalt with aprun, as on Theta; submits itself again until all epochs are trained.
#   qsub -A PROJECT --env CONFIG=my.json:RUN=/lus/mine/run jobs/cobalt.sh     in the repository's directory
#   jobs/cobalt.sh --dry-run                                                  prints what it would run
# The next job does not know the flags given to qsub: write project and queue below. No setting may have a colon
# in it but PROFILE, which the first job alone needs.

#COBALT -n 8
#COBALT -t 60
#COBALT -q default
#COBALT --attrs filesystems=home,theta-fs0
##COBALT -A PROJECT

CONFIG=${CONFIG:-configs/imagenet_resnet50.json}
RUN=${RUN:-runs/imagenet}           # on a file system that all nodes see; checkpoints, metrics, traces
VENV=${VENV-$PWD/.venv}             # empty: the python of the modules
MODULES=${MODULES:-}                # "cray-mpich": the MPI that Horovod was built with
STAGE=${STAGE:-}                    # a node-local directory, to train from copies there; empty: where the data is
PROFILE=${PROFILE:-}                # 20:40 traces these steps of the first job into RUN, and reports at the end
SET=${SET:-}                        # more of the config: "data.batch_size=128 training.epochs=30"
RANKS_PER_NODE=${RANKS_PER_NODE:-4}
DEPTH=${DEPTH:-16}                  # the node's cores (64 on Theta), shared out: a rank decodes with all of its own
SAVE_S=${SAVE_S:-300}               # seconds before the walltime is over at which the run saves and ends

set -euo pipefail
source jobs/common.sh

settings+=(RANKS_PER_NODE DEPTH SAVE_S)
resubmit() {
    local name pairs=()
    for name in "${settings[@]}"; do pairs+=("$name=${!name}"); done
    run qsub --env "$(IFS=: && echo "${pairs[*]}")" jobs/cobalt.sh
}

nodes=${COBALT_JOBSIZE:-8}
launch=(aprun -n $((nodes * RANKS_PER_NODE)) -N "$RANKS_PER_NODE" -d "$DEPTH" -j 1 --cc depth)
# Seconds since 1970 at which the walltime is over; without a job, as if it began now.
ends=${COBALT_ENDTIME:-$(($(date +%s) + 3600))}
train_until_done $((${ends%.*} - $(date +%s) - SAVE_S))
