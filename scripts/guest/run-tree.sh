#!/usr/bin/env bash
# shellcheck disable=SC2310,SC2312 # what is asked in conditions here returns its own failures
# Runs a command in a tree of files that `linus run` has sent into this VM, and
# keeps what the command has changed of it as two archives. Runs in a VM, as a job's
# task, from a directory of its own, which it removes, with what was sent beside it:
#   settings  NUL-terminated: the tree's name, the run's name, the directory of the tree
#             to run in, and the sha256 of the index that the tree has now; without one
#             it is made anew
#   tree.tgz  the files that are new or have changed
#   gone      the names that are no longer part of the tree, NUL-terminated
#   index     what the tree consists of then, for who compares before the next run
# Arguments: the command.
# It leaves in ~/linus-run: TREE, with what else commands have made in it, and .TREE with
# base (what was sent, as it was sent), index, RUN.before.tgz (the files that the command
# has changed or removed, as they were) and RUN.after.tgz (those it has changed or
# made, as they are).
# Exit codes: the command's; 125 it was not run.

max_changed=67108864 # bytes that are kept of what the command has changed
max_names=10000      # files

refuse() { # <why>
  printf 'linus run: %s\n' "$1" >&2
  exit 125
}

# remove_gone removes what is no longer part of the tree, and directories that are empty
# then.
remove_gone() { # <directory> <list>
  (
    cd -- "$1"
    xargs -0 -r rm -rf -- <"$2"
    xargs -0 -r dirname -z -- <"$2" | xargs -0 -r rmdir -p -- 2>/dev/null || true
  )
}

# update_tree makes the tree what it is where it was sent from. Until that is so there is
# no index, and the next run makes it anew.
update_tree() { # <tree> <state> <sent> <sha256 of the index>
  local -r tree=$1 state=$2 sent=$3 held=$4
  local sum=''
  if [[ -z ${held} ]]; then
    rm -rf -- "${tree}" "${state}/base"
  else
    [[ ! -e ${state}/index ]] || sum=$(sha256sum <"${state}/index")
    [[ ${sum%% *} == "${held}" ]] || refuse "the tree in this VM has changed since it was compared: run it again"
  fi
  rm -f -- "${state}/index" "${state}"/*.tgz
  mkdir -p -- "${tree}" "${state}/base"
  remove_gone "${state}/base" "${sent}/gone"
  remove_gone "${tree}" "${sent}/gone"
  tar -xzf "${sent}/tree.tgz" -C "${state}/base"
  cp -a --remove-destination -- "${state}/base/." "${tree}/"
  mv -f -- "${sent}/index" "${state}/index"
}

# set_mark makes a file that is older than all that changes from now on.
set_mark() { # <state>
  : >"$1/mark"
  until : >"$1/later" && [[ $1/later -nt $1/mark ]]; do :; done
}

# note_ignored marks the names in the array touched that git ignores.
note_ignored() {
  local name repository
  type -P git >/dev/null && repository=$(mktemp -d) || return 0
  git init -q --bare -- "${repository}" 2>/dev/null || return 0
  while IFS= read -r -d '' name; do
    touched["${name}"]=ignored
  done < <(printf '%s\0' "${!touched[@]}" | git --git-dir="${repository}" --work-tree=. check-ignore -z --stdin 2>/dev/null)
  rm -rf -- "${repository}"
}

# pack puts files of a directory into an archive, which appears whole.
pack() { # <directory> <archive> [<name>...]
  local -r from=$1 to=$2
  local -i code=0
  shift 2
  (($# == 0)) || printf '%s\0' "$@" >"${to}.names"
  (($# > 0)) || : >"${to}.names"
  # 1: a file has changed while it was read
  tar -C "${from}" --null --verbatim-files-from --no-recursion -T "${to}.names" -czf "${to}.part" || code=$?
  rm -f -- "${to}.names"
  ((code < 2)) && mv -f -- "${to}.part" "${to}"
}

# keep_changes compares the tree, the working directory, with what was sent.
keep_changes() { # <state> <run>
  local -r state=$1 run=$2
  local name
  local -i room=${max_changed} left=0
  local -A touched=() # the size of what was written since the mark, by name
  local -a before=() after=()
  while IFS= read -r -d '' name; do
    touched["${name#* }"]=${name%% *}
  done < <(find . -name .git -prune -o '(' -type f -o -type l ')' -cnewer "${state}/mark" -printf '%s %P\0')
  while IFS= read -r -d '' name; do
    if [[ ! -L ${name} && (-d ${name} || ! -e ${name}) ]]; then
      before+=("${name}")
    elif [[ -n ${touched["${name}"]:-} ]]; then
      keep_file && before+=("${name}")
    fi
    [[ -z ${touched["${name}"]:-} ]] || touched["${name}"]=ignored
  done < <(cd -- "${state}/base" && find . '(' -type f -o -type l ')' -printf '%P\0')
  ((${#touched[@]} == 0)) || note_ignored
  for name in "${!touched[@]}"; do
    [[ ${touched["${name}"]} == ignored ]] || keep_file || true
  done
  pack "${state}/base" "${state}/${run}.before.tgz" "${before[@]}" && pack . "${state}/${run}.after.tgz" "${after[@]}"
  ((left == 0)) || printf 'linus run: %d files are too large, or too many, to be part of what the command has changed; --pull PATH brings them\n' "${left}" >&2
}

# keep_file adds the name to the array after while there is room.
keep_file() {
  if ((touched["${name}"] > room || ${#after[@]} >= max_names)); then
    ((left += 1))
    return 1
  fi
  ((room -= touched["${name}"])) || true
  after+=("${name}")
}

main() {
  set -Eeuo pipefail
  shopt -s inherit_errexit
  local -a settings
  local -i code=0
  local sent tree state lock home=${HOME}
  trap 'refuse "the tree could not be put in place"' ERR
  sent=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
  mapfile -d '' -t settings <"${sent}/settings"
  if [[ -n ${SUDO_USER:-} ]]; then # root runs it, and the tree is that of who logs in
    home=$(getent passwd "${SUDO_USER}")
    home=$(cut -d : -f 6 <<<"${home}")
  fi
  tree=${home}/linus-run/${settings[0]}
  state=${home}/linus-run/.${settings[0]}
  mkdir -p -- "${state}"
  exec {lock}>"${state}/lock"
  flock -n "${lock}" || refuse "another run uses this tree in this VM"
  update_tree "${tree}" "${state}" "${sent}" "${settings[3]}"
  mkdir -p -- "${tree}/${settings[2]}"
  cd -- "${tree}/${settings[2]}"
  rm -rf -- "${sent}"
  set_mark "${state}"
  trap - ERR
  trap : INT TERM HUP # they end the command, and what it has changed is kept
  set +e
  (exec -- "$@") {lock}>&-
  code=$?
  cd -- "${tree}" && keep_changes "${state}" "${settings[1]}"
  [[ -z ${SUDO_USER:-} ]] || chown -R -h --reference="${home}" -- "${home}/linus-run"
  exit "${code}"
}

if ! (return 0 2>/dev/null); then main "$@"; fi
