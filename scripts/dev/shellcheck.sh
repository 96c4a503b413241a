#!/usr/bin/env bash
# Runs shellcheck on the files that it is given, each with all that it sources; where there
# is a library among them, on all libraries, as one program.
#
# It reads a file again at each line that sources it, so what many libraries source is
# read dozens of times. It is given copies, therefore, with the same lines, in which each
# file sources every library once, in the order in which bash runs them.
#
# What nothing was found in is not read again, here or in another clone, until a file is another,
# or shellcheck: a note of it is kept in a cache directory.
# Inputs: files by their paths from the repository's top, where it is run; XDG_CACHE_HOME
# (default ~/.cache). Exit codes: 0 nothing was found, 1 shellcheck's findings are on stdout.

# write_copies writes the copies of files: into <dir>/PATH to be checked, and of
# libraries into <dir>/once/NAME, with nothing that they source, to be sourced.
write_copies() { # <dir> <file>...
  local -r dir=$1
  shift
  awk -v dir="${dir}" '
    function sourced(line) { # the library that a line sources, or nothing
      return match(line, /^source ".*\/[a-z-]+\.sh"$/) && match(line, /[a-z-]+\.sh"$/) ? substr(line, RSTART, RLENGTH - 1) : ""
    }
    function needed(name,   i, list) { # what sourcing a library runs that has not been run
      if (name in done) return ""
      done[name] = 1
      for (i = 1; i <= lines["scripts/lib/" name]; i++) {
        if (sourced(text["scripts/lib/" name, i]) != "") list = list needed(sourced(text["scripts/lib/" name, i]))
      }
      return list "source " name "; "
    }
    { text[FILENAME, FNR] = $0; lines[FILENAME] = FNR }
    END {
      for (file in lines) {
        split("", done)
        name = file ~ /^scripts\/lib\// ? substr(file, 13) : ""
        if (name != "") done[name] = 1
        for (i = 1; i <= lines[file]; i++) {
          library = sourced(text[file, i])
          known = ("scripts/lib/" library) in lines
          print known ? needed(library) : text[file, i] >(dir "/" file)
          if (name != "") print known ? "" : text[file, i] >(dir "/once/" name)
        }
        close(dir "/" file)
        if (name != "") close(dir "/once/" name)
      }
    }' "$@"
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local work file well status=0
  local -a libraries=() others=()
  well=$(sha256sum -- "${BASH_SOURCE[0]}")
  work=$(mktemp -d)
  # shellcheck disable=SC2064 # as it is now
  trap "rm -rf -- '${work}'" EXIT
  for file in "$@"; do
    if [[ ${file} == scripts/lib/* ]]; then libraries+=("${file}"); else others+=("${file}"); fi
  done
  cp --parents -- .shellcheckrc scripts/lib/*.sh scripts/test/helper/*.bash "${work}"
  cp --parents -- "$@" "${work}"
  mkdir -- "${work}/once"
  write_copies "${work}" scripts/lib/*.sh "$@"
  cd -- "${work}"
  well=$({ printf '%s\n' "${well%% *}" "$@" && shellcheck --version && find . -type f -print0 | sort -z | xargs -0 sha256sum --; } | sha256sum)
  well=${XDG_CACHE_HOME:-${HOME}/.cache}/linus/shellcheck/${well%% *}
  if [[ -e ${well} ]]; then
    return 0
  fi
  if ((${#others[@]} > 0)); then
    shellcheck -P once "${others[@]}" || status=1
  fi
  if ((${#libraries[@]} > 0)); then # they speak to each other through globals
    libraries=(scripts/lib/*.sh)
    printf 'source "%s"\n' "${libraries[@]##*/}" | sed '1i #!/usr/bin/env bash' >all.sh
    if ! shellcheck -a -P once -S warning -e SC2034,SC2154 all.sh | sed 's,^In \(\./\)\?once/,In scripts/lib/,'; then
      status=1
      shellcheck -P once -S error "${libraries[@]}" || : # what is wrong with one that was not read
    fi
  fi
  if ((status == 0)); then
    mkdir -p -- "${well%/*}"
    touch -- "${well}"
  fi
  return "${status}"
}

if ! (return 0 2>/dev/null); then
  main "$@"
fi
