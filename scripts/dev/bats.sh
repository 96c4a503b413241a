#!/usr/bin/env bash
# Runs the tests of the shell. Those that fail beside all others, fifteen at most, are repeated
# once when all have ended, and said to be.
set -Eeuo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."

all=(bats --jobs 3 --no-parallelize-within-files --recursive scripts/test)
# bats keeps its record beside the first of its files, if there is a directory for it.
first=$(git ls-files 'scripts/test/*.bats' | head -n 1)
record="${first%/*}/.bats/run-logs"
rm -rf -- "${record}"
mkdir -p -- "${record}"

if "${all[@]}"; then
  exit 0
fi
failed=$(cat -- "${record}"/* 2>/dev/null | grep -c '^failed ' || true)
if ((failed < 1 || failed > 15)); then
  exit 1
fi
echo "repeating ${failed} tests of the shell that failed" >&2
"${all[@]:0:1}" --filter-status failed "${all[@]:1}"
