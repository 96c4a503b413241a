# shellcheck shell=bash
# shellcheck disable=SC2310,SC2312 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154,SC2034 # settings and places are the runner's; arrays are shared between the functions
# Finds the files of an ended task that match the job's patterns. Patterns are relative to the
# task's working directory, or absolute. Only * ? [] and ** are special in them: [*] is a plain *.
# Hidden files match like others, but wildcards match no .git. A directory's name stands for
# everything in it. With symlinks resolved, matches must lie in the working directory, or for an
# absolute pattern in the directory before its first wildcard. The engine checks names against
# patterns by the same rules again (internal/capture). Part of the job runner.

source "${BASH_SOURCE[0]%/*}/repository.sh"

# artifacts_find writes the state's file artifacts.index, NUL-terminated: name, absolute path, size,
# mode and sha256 of each file. It reports how many there are and what was left out.
artifacts_find() { # <max files> <max bytes each> <max bytes all>
  local number
  for number in "${@:1:3}" "$#"; do
    [[ ${number} =~ ^(0|[1-9][0-9]{0,17})$ && $# == 3 ]] \
      || result_fail invalid "artifacts: '$*' are not three numbers" "give how many files, and how many bytes each and all may have"
  done
  [[ -e ${state}/exit_status ]] || result_fail invalid "the task has not ended" "ask again when it has"
  rm -rf -- "${state}/artifacts"
  : >"${state}/artifacts.new"
  if settings_need_sudo; then
    # If the task ran as root, only root may see what it left.
    process_as_root "${BASH}" "${script}" collect "${HOME:-/}" "$@" \
      || result_fail vm "cannot look for artifacts as root" "read the job runner's log above this line"
    artifacts_lend
  else
    artifacts_collect "${HOME:-/}" "$@"
  fi
  mv -f -- "${state}/artifacts.new" "${state}/artifacts.index"
}

# artifacts_lend copies the files that the login user cannot read, and puts the copies into the
# index.
artifacts_lend() {
  local name path size mode sum
  local -i count=0
  mkdir -m 0700 -- "${state}/artifacts"
  while IFS= read -r -d '' name && IFS= read -r -d '' path && IFS= read -r -d '' size \
    && IFS= read -r -d '' mode && IFS= read -r -d '' sum; do
    if [[ ! -r ${path} ]]; then
      ((count += 1))
      : >"${state}/artifacts/${count}"
      printf '%s\0' "${path}" >&3
      path=${state}/artifacts/${count}
    fi
    printf '%s\0' "${name}" "${path}" "${size}" "${mode}" "${sum}"
  done <"${state}/artifacts.new" >"${state}/artifacts.lent" 3>"${state}/artifacts.unread"
  if ((count > 0)); then
    process_as_root "${BASH}" "${script}" copy \
      || result_fail vm "cannot copy artifacts as root" "read the job runner's log above this line"
  fi
  mv -f -- "${state}/artifacts.lent" "${state}/artifacts.new"
}

# artifacts_copy fills the login user's files artifacts/1, 2, ... with the content that only root
# can read.
artifacts_copy() {
  local path
  local -i count=0
  while IFS= read -r -d '' path; do
    ((count += 1))
    cat -- "${path}" >"${state}/artifacts/${count}"
  done <"${state}/artifacts.unread"
}

artifacts_collect() { # <working directory, unless CWD is set> <max files> <max bytes each> <max bytes all>
  local pattern
  local -A artifacts_seen=()
  local -a artifacts_names=() artifacts_paths=()
  local -i artifacts_skipped=0
  local artifacts_work=''
  if cd -- "${cwd:-$1}" 2>/dev/null; then
    artifacts_work=$(pwd -P)
  fi
  repository_collect "$3"
  if [[ -e ${home}/artifacts ]]; then
    while IFS= read -r -d '' pattern || [[ -n ${pattern} ]]; do
      artifacts_match "${pattern}"
    done <"${home}/artifacts"
  fi
  artifacts_index "${@:2}"
  result_line ARTIFACTS_SKIPPED "${artifacts_skipped}"
  result_line ARTIFACTS "${#artifacts_names[@]}"
}

# artifacts_match adds the files that one pattern matches to artifacts_names and artifacts_paths.
artifacts_match() { # <pattern>
  local pattern=$1 lead='' base path
  local -a found
  while [[ ${pattern} == *//* ]]; do pattern=${pattern//\/\//\/}; done
  while [[ ${pattern} == */./* ]]; do pattern=${pattern//\/.\//\/}; done
  pattern=${pattern#./}
  if [[ /${pattern}/ == */../* ]]; then
    skipped_tell "$1" "a path with .. is refused"
    return
  fi
  if [[ ${pattern} != *[*?[]* && -n ${pattern} && -d ${pattern} ]]; then
    pattern="${pattern%/}/**"
  fi
  if [[ ${pattern} == /* ]]; then
    lead=${pattern%%[*?[]*}
    lead=${lead%/*}/
    base=$(cd -- "${lead}" 2>/dev/null && pwd -P) || base=''
  else
    base=${artifacts_work}
  fi
  found=()
  if [[ -n ${base} && -n ${pattern} ]]; then
    local IFS=
    pattern=${pattern//\\/[\\\\]}
    shopt -s nullglob globstar dotglob
    # shellcheck disable=SC2206 # file name expansion, and with no IFS that alone, is the point
    found=(${pattern})
    shopt -u nullglob globstar dotglob
    unset IFS
  fi
  if ((${#found[@]} == 0)) || [[ ! -e ${found[0]} && ! -L ${found[0]} && ${found[0]} == "${pattern}" ]]; then
    skipped_tell "$1" "nothing there matches"
    return
  fi
  ((${#found[@]} > 1)) || [[ ${pattern} != *'**' || ${found[0]} != "${pattern%'**'}" ]] || skipped_tell "$1" "an empty directory"
  for path in "${found[@]}"; do
    artifacts_add "${path}" "${base}" "${lead}" "${pattern}"
  done
}

artifacts_add() { # <path> <directory it must lie in> <literal part before> <pattern>
  local path=$1 git=/$1/
  local -r name=${path#/}
  if [[ ${git} == */.git/* && /$4/ != */.git/* ]]; then
    git=${git%%/.git/*}/.git
    git=${git#"${git%%[!/]*}"}
    [[ -n ${artifacts_seen["${git}"]:-} ]] || skipped_tell "${git}" "git's own; it is an artifact if a pattern has .git in it"
    artifacts_seen["${git}"]=1
    return
  fi
  if [[ -d ${path} ]]; then
    [[ $4 == *'**' || $4 == *'**/*' ]] || skipped_tell "${name%/}" "a directory; /** behind the pattern is all that is in it"
    return
  fi
  [[ -n ${path} && -z ${artifacts_seen["${name}"]:-} ]] || return 0
  artifacts_seen["${name}"]=1
  if ! artifacts_lies_in "$@"; then
    skipped_tell "${name}" "a symlink leads outside of where its pattern looks"
  elif [[ ! -f ${path} ]]; then
    skipped_tell "${name}" "not a regular file"
  elif [[ ! -r ${path} ]]; then
    skipped_tell "${name}" "cannot be read"
  else
    [[ ${path} == /* ]] || path=${artifacts_work%/}/${path}
    artifacts_names+=("${name}")
    artifacts_paths+=("${path}")
  fi
}

# artifacts_lies_in asks the kernel only if the path has a symlink: there may be many files, and
# forks are slow in an emulated guest.
artifacts_lies_in() { # <path> <directory> <literal part before>
  local rest=${1#"$3"} way=$3 real
  while [[ ! -L ${way}${rest%%/*} ]]; do
    [[ ${rest} == */* ]] || return 0
    way+=${rest%%/*}/
    rest=${rest#*/}
  done
  IFS= read -r -d '' real < <(realpath -z -- "$1" 2>/dev/null) || return 1
  [[ ${real} == "${2%/}"/* ]]
}

# artifacts_index writes the files of artifacts_names that keep the limits into the index, and drops
# the others from artifacts_names.
artifacts_index() { # <max files> <max bytes each> <max bytes all>
  local -i i total=0
  local size mode path sum name
  local -A sizes=() modes=() sums=()
  local -a kept_names=() kept_paths=()
  for ((i = 0; i < ${#artifacts_paths[@]}; i += 100)); do
    while IFS= read -r -d '' size && IFS= read -r -d '' mode && IFS= read -r -d '' path; do
      sizes["${path}"]=${size} modes["${path}"]=${mode}
    done < <(stat -L --printf '%s\0%04a\0%n\0' -- "${artifacts_paths[@]:i:100}")
  done
  for ((i = 0; i < ${#artifacts_paths[@]}; i += 1)); do
    name=${artifacts_names[i]} path=${artifacts_paths[i]}
    size=${sizes["${path}"]:-}
    if [[ -z ${size} ]]; then
      skipped_tell "${name}" "is gone"
    elif ((${#kept_paths[@]} >= $1)); then
      skipped_tell "${name}" "more than $1 files"
    elif ((size > $2)); then
      skipped_tell "${name}" "its ${size} bytes are more than the $2 a file may have"
    elif ((total + size > $3)); then
      skipped_tell "${name}" "with its ${size} bytes all would have more than $3"
    else
      kept_names+=("${name}") kept_paths+=("${path}")
      ((total += size)) || true
    fi
  done
  for ((i = 0; i < ${#kept_paths[@]}; i += 100)); do
    while IFS= read -r -d '' sum; do
      sums["${sum:66}"]=${sum:0:64}
    done < <(sha256sum -z -- "${kept_paths[@]:i:100}")
  done
  artifacts_names=()
  for ((i = 0; i < ${#kept_paths[@]}; i += 1)); do
    name=${kept_names[i]} path=${kept_paths[i]}
    if [[ -z ${sums["${path}"]:-} ]]; then
      skipped_tell "${name}" "could not be read"
      continue
    fi
    artifacts_names+=("${name}")
    printf '%s\0' "${name}" "${path}" "${sizes["${path}"]}" "${modes["${path}"]}" "${sums["${path}"]}"
  done >"${state}/artifacts.new"
}
