#!/usr/bin/env bash
# Runs the tests of the shell. Those that fail beside all others, fifteen at most, are repeated
# once when all have ended, and said to be.
set -Eeuo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."

# The longest come first.
all=(bats --jobs 4 --no-parallelize-within-files scripts/test/{proxmox,guest,lib})
# bats keeps its record beside the first of its files, if there is a directory for it.
record=scripts/test/proxmox/.bats/run-logs
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
