#!/usr/bin/env bash
# jobs/slurm.sh in a real Slurm of one node, this machine: two ranks train the sample, are told to stop before the
# walltime, save, are queued again, and end with all epochs. Needs root and `apt install slurm-wlm munge libpmix-dev`; everything
# of Slurm's is in a temporary directory, and gone afterwards.
#   tests/slurm/run.sh                                        with .venv, as `make test` makes it; VENV=... for another
#   LAUNCH=mpirun tests/slurm/run.sh                          settings of jobs/slurm.sh: LAUNCH, MPI
#   SAMPLE=data/sample tests/slurm/run.sh                     data that `make train` made
#   EPOCHS=6 TIME=00:06:00 SAVE_S=120 tests/slurm/run.sh      for a busy machine: epochs that outlast a job's TIME
set -euo pipefail

EPOCHS=${EPOCHS:-60} TIME=${TIME:-00:03:00} SAVE_S=${SAVE_S:-60}
SAMPLE=${SAMPLE:+$(realpath "$SAMPLE")}
export VENV=${VENV:-$PWD/.venv} MPI=${MPI-pmix} LAUNCH=${LAUNCH:-srun}

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[[ $(id -u) == 0 ]] || { echo "root alone can start Slurm" >&2 && exit 2; }
for tool in munged slurmctld slurmd sbatch; do
    command -v $tool >/dev/null || { echo "there is no $tool: apt install slurm-wlm munge libpmix-dev" >&2 && exit 2; }
done
work=$(mktemp -d -p /tmp)
chmod 755 "$work"
pids=()
tear_down() {
    local code=$?
    scancel --user root 2>/dev/null || true
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    # slurmd waits for a job that does not end.
    (sleep 30 && kill -9 "${pids[@]}") 2>/dev/null &
    for pid in "${pids[@]}"; do wait "$pid" || true; done
    kill $! 2>/dev/null || true
    ((code == 0)) && rm -rf "$work" || echo "logs are in $work" >&2
}
trap tear_down EXIT

# --- Slurm ----------------------------------------------------------------------------------------

free_port() { "$VENV/bin/python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }
export SLURM_CONF=$work/slurm.conf
dd if=/dev/urandom of="$work/munge.key" bs=1024 count=1 status=none
chmod 600 "$work/munge.key"
mkdir "$work/state" "$work/spool"
munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
    --log-file="$work/munge.log" --seed-file="$work/munge.seed" 2>"$work/munged.err" &
pids+=($!)
node=$(hostname -s)
cat >"$SLURM_CONF" <<END
ClusterName=test
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$(free_port)
SlurmdPort=$(free_port)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmctldDebug=verbose
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
slurmctld -D 2>/dev/null &
pids+=($!)
slurmd -D 2>/dev/null &
pids+=($!)
for _ in {1..60}; do
    [[ $(sinfo -h -o %T 2>/dev/null) == idle ]] && break
    sleep 1
done
scontrol --version
sinfo

# --- The job --------------------------------------------------------------------------------------

if [[ ! $SAMPLE ]]; then
    SAMPLE=$work/sample
    "$VENV/bin/python" -m tfpipe sample "$SAMPLE" --images 4000 --scale 0.4
    "$VENV/bin/python" -m tfpipe filelist "$SAMPLE" --out "$SAMPLE/lists"
fi
export RUN=$work/run CONFIG=configs/sample.json
export SET="data.train_filelist=$SAMPLE/lists/train.txt data.test_filelist=$SAMPLE/lists/val.txt \
data.test_label_file=$SAMPLE/LOC_val_solution.csv training.epochs=$EPOCHS"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # for LAUNCH=mpirun
# Slurm sends the signal up to a minute before it is due.
job=$(sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --time="$TIME" --signal=B:USR1@"$SAVE_S" \
    --output="$work/job.log" jobs/slurm.sh)
echo "job $job"
state() { scontrol show job "$job" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p'; }
last="" seen=""
for _ in {1..3600}; do
    now="$(state) $(scontrol show job "$job" | grep -o 'Restarts=[0-9]*')"
    [[ $now == "$last" ]] || echo "$(date +%T) $now"
    last=$now
    case $now in COMPLETED*) seen=1 && break ;; FAILED* | TIMEOUT* | CANCELLED* | NODE_FAIL*) break ;; esac
    sleep 1
done
echo "--- the job's log"
cat "$work/job.log"
echo "---"
[[ $seen ]] || { echo "failed: the job ended as: $last" >&2 && exit 1; }

"$VENV/bin/python" - "$RUN/metrics.jsonl" "$EPOCHS" "$(scontrol show job "$job" | grep -o 'Restarts=[0-9]*' | cut -d= -f2)" <<'END'
import json, sys
path, epochs, restarts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lines = [line for line in map(json.loads, open(path)) if "test_top1" in line]
assert [line["epoch"] for line in lines] == list(range(1, epochs + 1)), lines
steps = [line["step"] for line in lines]
assert [step * epochs for step in steps] == [steps[-1] * epoch for epoch in range(1, epochs + 1)], steps
assert restarts >= 1, "the job was never queued again"
print(f"ok: {epochs} epochs of {steps[0]} steps in {restarts + 1} goes, test top-1 {lines[-1]['test_top1']:.3f}")
END
