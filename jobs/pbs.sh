#!/usr/bin/env bash
# Trains under PBS Pro with Cray's mpiexec (PALS), as on Polaris and Aurora; submits itself again until all epochs are trained.
#   qsub -A PROJECT -v CONFIG=my.json,RUN=/eagle/mine/run jobs/pbs.sh         in the repository's directory
#   jobs/pbs.sh --dry-run                                                     prints what it would run
# The next job gets the resources, the queue and the account of this one.

#PBS -N tfpipe
#PBS -l select=2
#PBS -l place=scatter
#PBS -l walltime=01:00:00
#PBS -l filesystems=home:eagle
#PBS -q debug
#PBS -j oe
##PBS -A PROJECT

CONFIG=${CONFIG:-configs/imagenet_resnet50.json}
RUN=${RUN:-runs/imagenet}           # on a file system that all nodes see; checkpoints, metrics, traces
VENV=${VENV-${PBS_O_WORKDIR:-$PWD}/.venv} # empty: the python of the modules
IMAGE=${IMAGE:-}                          # a container's image, in which apptainer starts python; empty: none
MODULES=${MODULES:-}                # "PrgEnv-gnu cray-mpich": the MPI that Horovod was built with
STAGE=${STAGE:-}                    # a node-local directory, to train from copies there; empty: where the data is
PROFILE=${PROFILE:-}                # 20:40 traces these steps of the first job into RUN, and reports at the end
SET=${SET:-}                        # more of the config: "data.batch_size=128 training.epochs=30"
RANKS_PER_NODE=${RANKS_PER_NODE:-4} # one a GPU
DEPTH=${DEPTH:-8}                   # the node's cores, shared out: a rank decodes with all of its own
CPU_BIND=${CPU_BIND:-depth}         # the cores of each rank of a node: list:24-31:16-23:8-15:0-7 puts Polaris' next to its GPU
SAVE_S=${SAVE_S:-300}               # seconds before the walltime is over at which the run saves and ends

set -euo pipefail
cd "${PBS_O_WORKDIR:-.}"
source jobs/common.sh

settings+=(RANKS_PER_NODE DEPTH CPU_BIND SAVE_S)
export "${settings[@]}"
of_job() { sed -n "s/^ *$1 = //p" <<<"$job"; }
resubmit() { # with what the command line of qsub may have said
    local name flags=()
    for name in select place walltime filesystems; do
        [[ ! $(of_job "Resource_List.$name") ]] || flags+=(-l "$name=$(of_job "Resource_List.$name")")
    done
    # Not the queue that it runs in: a routing queue, as Polaris' prod, hands jobs to queues that take none from users.
    [[ ! ${PBS_O_QUEUE:-} ]] || flags+=(-q "$PBS_O_QUEUE")
    [[ ! $(of_job Account_Name) ]] || flags+=(-A "$(of_job Account_Name)")
    run qsub "${flags[@]}" -v "$(IFS=, && echo "${settings[*]}")" jobs/pbs.sh
}

if [[ ${PBS_JOBID:-} ]]; then
    nodes=$(sort -u "$PBS_NODEFILE" | wc -l)
    job=$(qstat -f "$PBS_JOBID" | sed -e ':join' -e 'N;s/\n\t//;tjoin' -e 'P;D') # long lines are folded
else
    nodes=2 job="Resource_List.walltime = 01:00:00"
fi
walltime=$(of_job Resource_List.walltime)
launch=(mpiexec -n $((nodes * RANKS_PER_NODE)) --ppn "$RANKS_PER_NODE" --depth "$DEPTH" --cpu-bind "$CPU_BIND")
train_until_done $(($(seconds "$walltime") - SAVE_S - SECONDS))
