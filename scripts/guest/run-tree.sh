#!/usr/bin/env bash
# shellcheck disable=SC2310,SC2312 # what is asked in conditions here returns its own failures
# Runs a command in a tree of files that `linus run` has sent into this VM, and keeps what the
# command has changed in it as an archive. It runs in a VM, as a job's task, from a directory
# of its own. It removes that directory, with what was sent beside it:
#   settings  NUL-terminated: the tree's name, the run's name, the directory of the tree to
#             run in, and the sha256 of the index that the tree has now; without a sum, the
#             tree is made from scratch
#   tree.tgz  the files that are new or have changed
#   gone      the names that are no longer part of the tree, NUL-terminated
#   index     what the tree consists of afterwards, to compare with before the next run
# Arguments: the command.
# It leaves in ~/linus-run: TREE, with what else commands have made in it, and .TREE with
# base (the files as they were sent), index, and RUN.changes.tgz, which has
#   index     of the tree as the command found it
#   changes   NUL-terminated: +NAME for what the command has made or changed, -NAME for
#             what was sent and is gone
#   base/     the sent files that the command has changed or removed
#   tree/     the files that it has changed or made; of files that are too large, or too
#             many, changes has only the names
# Exit codes: the command's; 125 it was not run.

max_changed=67108864 # bytes kept of what the command has changed, as it is, and as many as it was
max_names=10000      # files kept as they are

refuse() { # <why>
  printf 'linus run: %s\n' "$1" >&2
  exit 125
}

# names lists what is below a directory, without following links.
names() { # <directory> [<test of find>...]
  find "$1" -mindepth 1 "${@:2}" -printf '%P\0' | LC_ALL=C sort -z
}

# remove removes the named files of a directory.
remove() { # <directory> [<option of rm>...]; stdin: the names
  (cd -- "$1" && xargs -0 -r rm -f "${@:2}" --)
}

# remove_gone removes what is no longer part of the tree, never through a link, and directories that
# become empty.
remove_gone() { # <directory> <list>
  LC_ALL=C comm -z -12 <(LC_ALL=C sort -z -- "$2") <(names "$1") | remove "$1" -r
  (cd -- "$1" && xargs -0 -r dirname -z -- <"$2" | xargs -0 -r rmdir -p -- 2>/dev/null) || true
}

# update_tree makes the tree what it is where it was sent from. Until that is done there is no
# index, and the next run makes the whole tree again.
update_tree() { # <tree> <state> <sent> <sha256 of the index>
  local -r tree=$1 base=$2/base state=$2 sent=$3 held=$4
  local sum=''
  mkdir -p -- "${tree}" "${base}"
  # Commands leave directories that cannot be written, such as Go's module cache.
  find "${tree}" "${base}" -type d ! -perm -u=rwx -exec chmod u+rwx -- {} \; 2>/dev/null || true
  if [[ -z ${held} ]]; then
    rm -rf -- "${tree}" "${base}"
    mkdir -- "${tree}" "${base}"
  else
    [[ ! -e ${state}/index ]] || sum=$(sha256sum <"${state}/index")
    [[ ${sum%% *} == "${held}" ]] || refuse "the tree in this VM has changed since it was compared: run it again"
  fi
  rm -f -- "${state}/index" "${state}"/*.tgz
  remove_gone "${base}" "${sent}/gone"
  remove_gone "${tree}" "${sent}/gone"
  tar -xpzf "${sent}/tree.tgz" -C "${base}"
  # Removes what is in the way: files and links where directories belong, directories where files
  # belong.
  LC_ALL=C comm -z -23 <(names "${base}" -type d) <(names "${tree}" -type d) | remove "${tree}"
  LC_ALL=C comm -z -12 <(names "${base}" ! -type d) <(names "${tree}" -type d) | remove "${tree}" -r
  cp -a --remove-destination -- "${base}/." "${tree}/"
  mv -f -- "${sent}/index" "${state}/index"
}

# list_tree lists the working directory: kind (? for a directory that cannot be read), mode and
# size; what else differs once a file was written; and the name. Times only save reading: a file
# with another time alone is not changed, and neither is one with everything the same.
list_tree() {
  find . -ignore_readdir_race -mindepth 1 -name .git -prune -o \
    -type d '(' -readable -executable -o -printf '?:0 /%P\0' -prune ')' -o \
    -printf '%y%m:%s %i %T@ %C@/%P\0' | LC_ALL=C sort -z
}

# note_ignored marks the names in the array is that exist and that git ignores.
note_ignored() {
  local name repository
  type -P git >/dev/null && repository=$(mktemp -d) || return 0
  git init -q --bare -- "${repository}" 2>/dev/null || return 0
  while IFS= read -r -d '' name; do
    ignored["${name}"]=yes
  done < <(for name in "${!is[@]}"; do
    [[ -z ${is["${name}"]} ]] || printf '%s\0' "${name}"
  done | git --git-dir="${repository}" --work-tree=. check-ignore -z --stdin 2>/dev/null)
  rm -rf -- "${repository}"
}

# keep_changes compares the tree, which is the working directory, with the list from before, and
# what differs with what was sent.
keep_changes() { # <state> <archive>
  local name line now
  local -i room=${max_changed} room_before=${max_changed} files=0 left=0 code=0
  local -A is=() sent=() ignored=() # kind, mode and size, by name; is also has what is gone
  list_tree >"$1/after" || return
  while IFS= read -r -d '' line; do
    name=${line#*/}
    if [[ ${line} == $'\t'* ]]; then
      is["${name}"]=${line:1}
    else
      is["${name}"]=${is["${name}"]:-}
    fi
  done < <(LC_ALL=C comm -z -3 "$1/before" "$1/after")
  while IFS= read -r -d '' line; do
    sent["${line#*/}"]=${line%%/*}
  done < <(find "$1/base" ! -type d -printf '%y%m:%s/%P\0')
  note_ignored
  printf '%s\0' index changes >"$1/kept"
  for name in "${!is[@]}"; do
    now=${is["${name}"]%% *}
    line=${sent["${name}"]:-}
    if [[ -n ${line} ]]; then
      [[ ${line} != "${now}" || ${line} != f* ]] || ! cmp -s -- "$1/base/${name}" "${name}" || continue
      if ((${line#*:} <= room_before)); then
        ((room_before -= ${line#*:})) || true
        printf 'base/%s\0' "${name}" >&3
      fi
    elif [[ ${now} != [fl\?]* || -n ${ignored["${name}"]:-} ]]; then
      continue
    fi
    if [[ -z ${now} ]]; then
      printf -- '-%s\0' "${name}"
      continue
    fi
    printf '+%s\0' "${name}"
    if [[ ${now} == [fl]* && (-L ${name} || -r ${name}) ]] && ((${now#*:} <= room && files < max_names)); then
      ((room -= ${now#*:}, files += 1)) || true
      printf 'tree/%s\0' "${name}" >&3
    else
      ((left += 1))
    fi
  done >"$1/changes" 3>>"$1/kept"
  ln -sfn -- "${PWD}" "$1/tree"
  # 1: a file has changed while it was read
  tar -C "$1" --ignore-failed-read --null --verbatim-files-from --no-recursion -T "$1/kept" -czf "$2.part" || code=$?
  ((code < 2)) && mv -f -- "$2.part" "$2"
  ((left == 0)) || printf 'linus run: %d files cannot be read, are too large, or too many, to be part of what the command has changed; --pull PATH brings them\n' "${left}" >&2
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
  if [[ -n ${SUDO_USER:-} ]]; then # root runs it, and the tree is that of the user who logs in
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
  cd -- "${tree}"
  list_tree >"${state}/before"
  # What is written from now on has a different time.
  until : >"${state}/later" && [[ ${state}/later -nt ${state}/before || ${state}/later -ot ${state}/before ]]; do :; done
  cd -- "${tree}/${settings[2]}"
  rm -rf -- "${sent}"
  trap - ERR
  trap : INT TERM HUP # they end the command, and what it has changed is kept
  set +e
  # env reports why a command cannot be run, without a line number of this script; to env, a=b is a
  # variable.
  ([[ $1 == *=* ]] || exec env -- "$@" && exec -- "$@") {lock}>&-
  code=$?
  cd -- "${tree}" && keep_changes "${state}" "${state}/${settings[1]}.changes.tgz"
  [[ -z ${SUDO_USER:-} ]] || chown -R -h --reference="${home}" -- "${home}/linus-run"
  exit "${code}"
}

if ! (return 0 2>/dev/null); then main "$@"; fi
