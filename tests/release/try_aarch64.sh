#!/usr/bin/env bash
# Loads the core of an aarch64 wheel under emulation: tests/release/try_aarch64.sh WHEEL
# It must be of this version and use NEON; what it computes is tested by tests/native/test_neon.py.
set -euo pipefail
wheel=$(realpath "$1")
version=$(sed -n 's/^VERSION = //p' "$(dirname "${BASH_SOURCE[0]}")/../../tfpipe/native/version.py")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

"${PYTHON:-python3}" -m zipfile -e "$wheel" .
cat >load.c <<'C'
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **names) {
    void *core = dlopen(names[count - 1], RTLD_NOW);
    if (!core) return printf("%s\n", dlerror()), 1;
    int (*version)(void) = (int (*)(void))dlsym(core, "tfpipe_native_version");
    const char *(*simd)(void) = (const char *(*)(void))dlsym(core, "tfpipe_simd");
    return printf("%d %s\n", version(), simd()), 0;
}
C
aarch64-linux-gnu-gcc -o load load.c -ldl
said=$(qemu-aarch64 -L /usr/aarch64-linux-gnu ./load "$PWD/tfpipe/native/_core.abi3.so" || true)
[ "$said" = "$version neon" ] || { echo "$(basename "$wheel"): expected $version neon, received $said" >&2; exit 1; }
# The ops' own symbols come from TensorFlow and the core.
others=$(aarch64-linux-gnu-nm -D --undefined-only tfpipe/native/_ops.abi3.so | grep -Ev ' (TF_|tfpipe_)| w |@GLIBC_' || true)
[ -z "$others" ] || { echo "$(basename "$wheel"): its ops lack $others" >&2; exit 1; }
echo "$(basename "$wheel"): its core runs under emulation, with NEON"
