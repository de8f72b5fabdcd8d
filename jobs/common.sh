# shellcheck shell=bash disable=SC2034,SC2153,SC2154
# The common part of the job scripts: from the settings at their top to trained epochs. A script sets
#   launch    the words that start the job's ranks
# and may define `resubmit`, which puts the job into the queue again. See jobs/README.md.

settings=(CONFIG RUN VENV IMAGE MODULES STAGE SET) # what a job hands on to the next

dry_run=""
case ${1:-} in
    "") ;;
    --dry-run) dry_run=1 ;;
    *) echo "usage: ${BASH_SOURCE[1]} [--dry-run]; its settings are at its top" >&2 && exit 2 ;;
esac

say() { echo "job: $*"; }
run() { # a command; with --dry-run, says it
    if [[ $dry_run ]]; then
        printf '%q ' "$@" && echo
    else
        "$@"
    fi
}
seconds() { # of HH:MM:SS
    local hours minutes rest
    IFS=: read -r hours minutes rest <<<"$1"
    echo $((10#$hours * 3600 + 10#$minutes * 60 + 10#$rest))
}

enter_environment() {
    local module
    for module in $MODULES; do run module load "$module"; done
    if [[ $VENV ]]; then
        [[ ! $dry_run ]] || echo "export PATH=$VENV/bin:\$PATH"
        export PATH="$VENV/bin:$PATH"
    fi
    # By its path: a launcher may start ranks on other nodes with another PATH.
    python=(${IMAGE:+apptainer exec "$IMAGE"} "${VENV:+$VENV/bin/}python")
}

read_set() { # SET, as words for a command; a value goes on until the next key, and may have spaces
    local each keys='(data|model|optimizer|lr_schedule|loss|metrics|callbacks|training)(\.[a-z_0-9]+)*='
    set=()
    while IFS= read -r each; do
        [[ ! $each ]] || set+=(--set "$each")
    done < <(sed -E "s/^ +| +$//g; s/ +($keys)/\n\1/g" <<<"$SET")
}

newest_checkpoint() { { find "$RUN/checkpoints" -maxdepth 1 -name 'step-*.npz' 2>/dev/null || true; } | sort | tail -n 1; }

# Runs a command that SIGUSR1 tells to save and end, and waits for it; its exit code is in `code`. In the background,
# since bash handles no signal while it waits for a command in the foreground.
supervise() { # seconds until it is told so, or nothing; the command
    local seconds=$1 told="" timer=""
    shift
    if [[ $dry_run ]]; then
        [[ ! $seconds ]] || say "SIGUSR1 to the following after $seconds s"
        code=0
        run "$@"
        return
    fi
    "$@" &
    local launcher=$!
    trap 'told=1; kill -USR1 "$launcher" 2>/dev/null' USR1
    # Cancelled, and so not to be submitted again. A scheduler tells the ranks too, whom a second signal would end at once.
    if declare -F resubmit >/dev/null; then
        trap 'told=1; cancelled=1' TERM
    else
        trap 'told=1; cancelled=1; kill -USR1 "$launcher" 2>/dev/null' TERM
    fi
    if [[ $seconds ]]; then
        (sleep "$seconds" && kill -USR1 $$) &
        timer=$!
    fi
    code=0
    wait "$launcher" || code=$?
    while [[ $told ]]; do # a signal ended that wait, not the command
        told="" code=0
        wait "$launcher" || code=$?
    done
    trap - USR1 TERM
    [[ ! $timer ]] || pkill -P "$timer" 2>/dev/null || true
}

# What Open MPI's mpirun, 4 and 5, is told by its environment: not to bind a rank to one core, since ranks without cores
# of their own share those of the host evenly; and to end the job 60 s after a host has stopped answering, not 480.
open_mpi=()
for variable in PRTE_MCA_hwloc_default OMPI_MCA_hwloc_base; do open_mpi+=("${variable}_binding_policy=none"); done
for variable in PRTE_MCA_oob_tcp OMPI_MCA_oob_tcp; do
    open_mpi+=("${variable}_keepalive_time=20" "${variable}_keepalive_intvl=10" "${variable}_keepalive_probes=4")
done

# Sorts hosts into the arrays `kept` and `lost`, all at once, by a command that succeeds for a host that answers.
find_lost_hosts() { # the command; the hosts
    local answers=$1 host probes=()
    shift
    kept=() lost=()
    for host in "$@"; do
        "$answers" "$host" </dev/null >/dev/null 2>&1 &
        probes+=($!)
    done
    for host in "$@"; do
        if wait "${probes[0]}"; then kept+=("$host"); else lost+=("$host"); fi
        probes=("${probes[@]:1}")
    done
}

# Copies the data to the nodes; the words that then train from there are in `staged`.
stage_data() {
    local said stage=("${launch[@]}" "${python[@]}" -m tfpipe stage -c "$CONFIG" --out "$STAGE" --split all "${set[@]}")
    if [[ $dry_run ]]; then
        run "${stage[@]}"
        staged=(--set "(what that says)")
        return
    fi
    say "copying the data to $STAGE of every node"
    said=$("${stage[@]}")
    say "$said"
    # Words as a shell reads them: a folder's name may have spaces.
    mapfile -t staged < <(sed -n 's/^train from it with: //p' <<<"$said" | xargs printf '%s\n')
}

events() { { wc -l <"$RUN/events.jsonl"; } 2>/dev/null || echo 0; } # lines that the run has written of its starts and ends

# Trains; when a host is lost, which `leave_lost_hosts` of the script finds out, resumes at once on those that remain. A
# start in which a rank crashes before the run has begun is made again, three times at most: Open MPI 5 does in MPI_Init,
# https://github.com/open-mpi/ompi/issues/12495 (perhaps by the race of its pull request 13559), twice in a row on hosts
# with more ranks than CPUs. The code is 139, or 14, with which srun's PMIx may end the other ranks.
train_on_hosts() { # seconds after which it is to save and end, or nothing
    local seconds=$1 end=$((SECONDS + ${1:-0})) stopped crashes=0 begun
    while true; do
        [[ ! $STAGE ]] || stage_data
        begun=$(events)
        supervise "$seconds" "${launch[@]}" "${python[@]}" train.py -c "$CONFIG" -l "$RUN" --resume auto "${options[@]}" \
            "${set[@]}" "${staged[@]}"
        if ((code == 139 || code == 14)) && [[ ! ${cancelled:-} && $(events) == "$begun" ]] && ((crashes++ < 3)); then
            say "a rank crashed before the run had begun; starts it once more"
            [[ ! $seconds ]] || seconds=$((end > SECONDS ? end - SECONDS : 1))
            continue
        fi
        [[ ! $dry_run ]] && ((code != 75)) && declare -F leave_lost_hosts >/dev/null || return 0
        stopped=""
        trap 'stopped=1' USR1
        trap 'stopped=1 cancelled=1' TERM
        # Also after code 0, with which Open MPI's mpirun ends when it has lost a host.
        leave_lost_hosts || return 0
        [[ ! $seconds ]] || seconds=$((end > SECONDS ? end - SECONDS : 1))
        say "${lost[*]%%:*} does not answer; resumes on ${kept[*]%%:*}"
        trap - USR1 TERM
        [[ ! $stopped ]] || { code=75 && return 0; }
    done
}

# Begins the run in $RUN, or resumes it; when its time is over before its epochs, submits the job again.
train_until_done() { # seconds after which it is to save and end, or nothing: the scheduler says so by SIGUSR1
    local options=() staged=() before cancelled="" code
    [[ ! $1 ]] || (($1 > 0)) || { say "the walltime is over before its last SAVE_S seconds begin" && exit 2; }
    enter_environment
    read_set
    before=$(newest_checkpoint)
    # The first job alone: the steps are counted from the beginning of each.
    [[ ! $PROFILE || $before ]] || options+=(--profile "$PROFILE")
    train_on_hosts "$1"
    if [[ $dry_run ]]; then
        if declare -F resubmit >/dev/null; then
            say "then, with code 75, which is that of a run that has saved and ended early:"
            resubmit
        fi
        [[ ! $PROFILE ]] || run "${python[@]}" -m tfpipe report "$RUN"
    elif ((code == 75)) && [[ $cancelled ]]; then
        say "cancelled; $RUN is saved, and the same job resumes it"
    elif ((code == 75)) && [[ $(newest_checkpoint) == "$before" ]]; then
        say "this job has not trained one step, so it is not submitted again: give it more time"
        code=1
    elif ((code == 75)) && declare -F resubmit >/dev/null; then
        say "not all epochs are trained; queues the job again"
        resubmit
    elif ((code == 0)) && [[ ! -e $RUN/model.keras || $(newest_checkpoint) -nt $RUN/model.keras ]]; then
        say "the launcher ended with code 0, but the run has not ended: one of its daemons may have been killed"
        code=1
    elif ((code == 0)) && [[ -e $RUN/plugins/profile ]]; then
        "${python[@]}" -m tfpipe report "$RUN" | tee "$RUN/report.txt"
    fi
    exit "$code"
}

# A few traced steps, for a comparison; `sets` are the words that make the difference.
train_traced() {
    local launch
    enter_environment
    read_set
    read -ra launch <<<"$LAUNCH"
    run "${launch[@]}" "${python[@]}" train.py -c "$CONFIG" -l "$RUN" -n "$STEPS" --profile "$PROFILE" "${set[@]}" "${sets[@]}"
}
