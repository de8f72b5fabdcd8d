#!/usr/bin/env bash
# Trains under Slurm, and resumes in the same job, queued again, until all epochs are trained.
#   CONFIG=my.json RUN=/scratch/runs/mine sbatch -A ACCOUNT jobs/slurm.sh     in the repository's directory
#   jobs/slurm.sh --dry-run                                                   prints what it would run

#SBATCH --job-name=tfpipe
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4         # one rank a GPU; without GPUs one or two a socket
#SBATCH --cpus-per-task=8           # the node's cores, shared out: a rank decodes with all of its own
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR1@300         # 5 minutes before the end: a step, a checkpoint and their files take less
#SBATCH --requeue
#SBATCH --no-kill                   # a lost node ends its ranks, not the job, which resumes on the others
#SBATCH --open-mode=append          # one log, however often it is queued

CONFIG=${CONFIG:-configs/imagenet_resnet50.json}
RUN=${RUN:-runs/imagenet}           # on a file system that all nodes see; checkpoints, metrics, traces
VENV=${VENV-$PWD/.venv}             # empty: the python of the modules
IMAGE=${IMAGE:-}                    # a container's image, in which apptainer starts python; empty: none
MODULES=${MODULES:-}                # "gcc openmpi": the MPI that Horovod was built with
STAGE=${STAGE:-}                    # a node-local directory, to train from copies there; empty: where the data is
PROFILE=${PROFILE:-}                # 20:40 traces these steps of the first job into RUN, and reports at the end
SET=${SET:-}                        # more of the config: "data.batch_size=128 training.epochs=30"
GPUS=${GPUS:-}                      # srun's flags for GPUs: on Frontier "--gpus-per-task=1 --gpu-bind=closest", on LUMI
                                    # "--gpus-per-node=8 --cpu-bind=mask_cpu:...", see jobs/README.md, both with sbatch
                                    # --cpus-per-task=7, since they keep a core of each 8; empty: the site's
LAUNCH=${LAUNCH:-srun}              # or mpirun, where srun and the MPI do not know each other
MPI=${MPI:-}                        # srun --mpi: pmix for Open MPI, pmi2 or cray_shasta for MPICH; empty: the site's
                                    # (not needed without Horovod: SET="training.collectives=tensorflow")

set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
source jobs/common.sh

read -ra gpus <<<"$GPUS"
resubmit() { run scontrol requeue "${SLURM_JOB_ID:-JOB}"; }

nodes=() # those that are left once some are lost
set_launch() {
    local each=$((${SLURM_NTASKS:-8} / ${SLURM_JOB_NUM_NODES:-2})) list
    local ranks=$((${#nodes[@]} ? each * ${#nodes[@]} : ${SLURM_NTASKS:-8}))
    list=$(IFS=, && echo "${nodes[*]}")
    if [[ $LAUNCH == mpirun ]]; then
        launch=(mpirun -n "$ranks" ${list:+--host "${list//,/:$each,}:$each"})
    else
        # The step that has lost a node holds its CPUs for long, so the next one shares them (--overlap).
        # Ranks that wait for one that failed are ended, but not before all have had time to save and to end with code 75.
        launch=(srun ${MPI:+--mpi="$MPI"} ${list:+--overlap --nodelist="$list" --nodes="${#nodes[@]}" --ntasks="$ranks"}
            --cpus-per-task="${SLURM_CPUS_PER_TASK:-8}" --cpu-bind=cores "${gpus[@]}" --kill-on-bad-exit=0 --wait=300)
    fi
}
# shellcheck disable=SC2317,SC2329 # find_lost_hosts calls it
answers() { timeout 60 srun --overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist="$1" true; }
leave_lost_hosts() { # fails if all nodes answer; Slurm itself queues a job again whose first node, this one, is lost
    ((${#nodes[@]})) || mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    find_lost_hosts answers "${nodes[@]}"
    ((${#lost[@]} && ${#kept[@]})) || return 1
    nodes=("${kept[@]}")
    set_launch
}

export "${open_mpi[@]}"
set_launch
train_until_done ""
