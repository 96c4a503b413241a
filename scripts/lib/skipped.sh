# shellcheck shell=bash
# Reports what a job's patterns match or its repository has, but is no artifact. Part of the job
# runner.

source "${BASH_SOURCE[0]%/*}/result.sh"

# skipped_tell counts an entry in artifacts_skipped, and reports the first 50. The name comes last,
# because only the name can hold ": ".
skipped_tell() { # <name> <why>
  ((artifacts_skipped += 1))
  ((artifacts_skipped > 50)) || result_text ARTIFACT_SKIPPED "$2: ${1:0:500}"
}
