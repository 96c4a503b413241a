# shellcheck shell=bash
# The log for people, on stderr.

log_line() { # <level> <text...>
  local -r level=$1
  shift
  printf '%(%H:%M:%S)T %-5s %s\n' -1 "${level}" "$*" >&2 || :
}

log_info() { # <text...>
  log_line info "$@"
}

log_warn() { # <text...>
  log_line warn "$@"
}

log_error() { # <text...>
  log_line error "$@"
}
