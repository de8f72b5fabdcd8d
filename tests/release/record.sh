#!/usr/bin/env bash
# Keeps the record of a green `make test-full` as a note of the commit (git notes --ref test-full).
#   record.sh write    notes that the commit at hand has passed, unless files differ from it
#   record.sh check    fails, with the remedy, unless the commit at hand has passed
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

commit=$(git rev-parse --short HEAD)
changed=$(git status --porcelain)
case ${1:-} in
    write)
        if [[ $changed ]]; then
            echo "test-full has passed; it is not recorded, since files differ from commit $commit:" && head -n 5 <<<"$changed"
        else
            git -c user.name=make -c user.email=make@localhost notes --ref test-full add -f \
                -m "make test-full passed on $(date -u +%F), $(nproc) CPUs" HEAD
            echo "recorded: make test-full has passed for commit $commit"
        fi
        ;;
    check)
        if [[ $changed ]]; then
            echo "release: files differ from commit $commit, which is what a release is made from; commit or remove:" >&2
            head -n 5 <<<"$changed" >&2
            exit 1
        fi
        git notes --ref test-full show HEAD 2>/dev/null || {
            echo "release: no make test-full has passed for commit $commit: run make test-full" >&2
            exit 1
        }
        ;;
    *) sed -n '2,4p' "$0" >&2 && exit 2 ;;
esac
