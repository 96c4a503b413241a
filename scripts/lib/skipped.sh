# shellcheck shell=bash
# What a job's patterns match and its repository has, and is no artifact. A part of the job runner.

source "${BASH_SOURCE[0]%/*}/result.sh"

# skipped_tell counts one in artifacts_skipped, and tells of the first 50. The name comes last: it
# alone can hold ": ".
skipped_tell() { # <name> <why>
  ((artifacts_skipped += 1))
  ((artifacts_skipped > 50)) || result_text ARTIFACT_SKIPPED "$2: ${1:0:500}"
}
