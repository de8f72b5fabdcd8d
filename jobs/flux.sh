#!/usr/bin/env bash
# Trains under Flux, as on El Capitan and Tuolumne; submits itself again until all epochs are trained.
#   CONFIG=my.json RUN=/p/lustre/mine/run flux batch jobs/flux.sh             in the repository's directory
#   jobs/flux.sh --dry-run                                                    prints what it would run

#flux: --job-name=tfpipe
#flux: --nodes=2
#flux: --exclusive
#flux: --time-limit=2h

CONFIG=${CONFIG:-configs/imagenet_resnet50.json}
RUN=${RUN:-runs/imagenet}           # on a file system that all nodes see; checkpoints, metrics, traces
VENV=${VENV-$PWD/.venv}             # empty: the python of the modules
IMAGE=${IMAGE:-}                    # a container's image, in which apptainer starts python; empty: none
MODULES=${MODULES:-}                # the MPI that Horovod was built with; none is needed without Horovod
STAGE=${STAGE:-}                    # a node-local directory, to train from copies there; empty: where the data is
PROFILE=${PROFILE:-}                # 20:40 traces these steps of the first job into RUN, and reports at the end
SET=${SET:-}                        # more of the config: "data.batch_size=128 training.epochs=30"
RANKS_PER_NODE=${RANKS_PER_NODE:-4} # one a GPU
CORES=${CORES:-24}                  # the node's cores, shared out: a rank decodes with all of its own
GPUS=${GPUS-1}                      # GPUs of a rank; empty: the nodes have none
SAVE_S=${SAVE_S:-300}               # seconds before the walltime is over at which the run saves and ends

set -euo pipefail
source jobs/common.sh

settings+=(RANKS_PER_NODE CORES GPUS SAVE_S)
export "${settings[@]}"
resubmit() { # as this job was submitted: what the command line said of nodes, time, queue and bank wins over this script
    local asked=()
    [[ ! ${FLUX_ENCLOSING_ID:-} ]] || mapfile -t asked < <(flux --parent job info "$(flux getattr jobid)" jobspec | python3 -c '
import json, sys
about = json.load(sys.stdin)["attributes"]["system"]
asked = {"time-limit": about.get("duration") and f"{int(about['"'duration'"'])}s", "queue": about.get("queue"), "bank": about.get("bank")}
print(*(f"--{flag}={value}" for flag, value in asked.items() if value), sep="\n")')
    run flux --parent batch --nodes="$nodes" "${asked[@]}" jobs/flux.sh
}

# A job in this allocation. `flux run` would keep SIGUSR1 to itself.
# shellcheck disable=SC2317,SC2329 # `launch` calls it
flux_job() { # submit, and its words
    local job attached code told=1
    job=$(flux "$@")
    trap 'told=1; flux job kill --signal=SIGUSR1 "$job"' USR1
    flux job attach "$job" &
    attached=$!
    while [[ $told ]]; do # the signal ended the wait, with a code of its own
        told="" code=0
        wait "$attached" || code=$?
    done
    return "$code"
}

if [[ ${FLUX_ENCLOSING_ID:-} ]]; then
    nodes=$(flux getattr size)
    left=$(flux job timeleft)
else
    nodes=2 left=7200
fi
# Ranks that wait for one that failed are ended, but not before all have had time to save and to end with code 75.
launch=(flux submit --nodes="$nodes" --ntasks=$((nodes * RANKS_PER_NODE)) --cores-per-task="$CORES"
    ${GPUS:+--gpus-per-task="$GPUS"} --setopt=cpu-affinity=per-task ${GPUS:+--setopt=gpu-affinity=per-task}
    --setopt=exit-timeout=300s)
[[ $dry_run ]] || launch[0]=flux_job
train_until_done $((left - SAVE_S))
