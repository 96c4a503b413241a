# shellcheck shell=bash
# shellcheck disable=SC2034 # what is read is for the callers
# One process, as /proc shows it. A process is identified by its ID and its start, because IDs are
# used again. It is read with builtins only: a fork costs much more than a read on an emulated
# guest.

# stat_read sets stat_start (clock ticks since boot), stat_parent, stat_session and stat_tty (the
# device number of its terminal, 0 for none). They are empty when there is no such process, or when
# it has ended and was not waited for yet.
stat_read() { # <pid>
  local line='' IFS=' '
  stat_start='' stat_parent='' stat_session='' stat_tty=''
  { IFS= read -r line <"/proc/$1/stat"; } 2>/dev/null || return 0
  # The command's name is in brackets and may hold blanks and brackets itself.
  # shellcheck disable=SC2206 # numbers and one letter: splitting is the point
  local -a fields=(${line##*) })
  if [[ ${fields[0]} != [ZX] ]]; then
    stat_start=${fields[19]:-}
    stat_parent=${fields[1]}
    stat_session=${fields[3]}
    stat_tty=${fields[4]}
  fi
}
