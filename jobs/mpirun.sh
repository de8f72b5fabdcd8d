#!/usr/bin/env bash
# Trains with mpirun of Open MPI or MPICH: on this machine, or on several that ssh reaches without a password.
#   RANKS=4 CONFIG=my.json RUN=runs/mine jobs/mpirun.sh                       in the repository's directory
#   HOSTS=node1:4,node2:4 RANKS=8 jobs/mpirun.sh
#   jobs/mpirun.sh --dry-run                                                  prints what it would run
# When a host is lost, the run resumes from its last checkpoint on the others.
# SIGUSR1 to this script saves and ends the run; the same command resumes it. (Ctrl-C ends it as it is.)

CONFIG=${CONFIG:-configs/sample.json}
RUN=${RUN:-runs/mpirun}             # on a file system that all hosts see; checkpoints, metrics, traces
VENV=${VENV-$PWD/.venv}             # empty: the python on PATH
IMAGE=${IMAGE:-}                    # a container's image, in which apptainer starts python; empty: none
MODULES=${MODULES:-}
STAGE=${STAGE:-}                    # a local directory of each host, to train from copies there; empty: where the data is
PROFILE=${PROFILE:-}                # 20:40 traces these steps of the first run into RUN, and reports at the end
SET=${SET:-}                        # more of the config: "data.batch_size=128 training.epochs=30"
RANKS=${RANKS:-2}
HOSTS=${HOSTS:-}                    # HOST:RANKS,HOST:RANKS; empty: this machine
STOP_AFTER_S=${STOP_AFTER_S:-}      # seconds after which the run saves and ends

set -euo pipefail
source jobs/common.sh

export "${open_mpi[@]}"
set_launch() {
    launch=(mpirun -n "$RANKS")
    [[ $HOSTS ]] || return 0
    local host=--host # of Open MPI
    [[ $(mpirun --version 2>&1) != *HYDRA* ]] || host=-hosts
    launch+=("$host" "$HOSTS")
}
# shellcheck disable=SC2317,SC2329 # find_lost_hosts calls it
answers() { # whether a host, HOST:RANKS, is this one or one that ssh reaches
    [[ ${1%%:*} == "$(hostname)" ]] || timeout 30 ssh -o BatchMode=yes -o ConnectTimeout=10 "${1%%:*}" true
}
leave_lost_hosts() { # fails if all answer, or none
    local entry entries slots=0
    IFS=, read -ra entries <<<"$HOSTS"
    find_lost_hosts answers "${entries[@]}"
    ((${#lost[@]} && ${#kept[@]})) || return 1
    for entry in "${kept[@]}"; do
        [[ $entry == *:* ]] || entry+=:1
        ((slots += ${entry##*:}))
    done
    HOSTS=$(IFS=, && echo "${kept[*]}")
    ((RANKS <= slots)) || RANKS=$slots
    set_launch
}
set_launch
train_until_done "$STOP_AFTER_S"
