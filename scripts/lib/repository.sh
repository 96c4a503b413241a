# shellcheck shell=bash
# shellcheck disable=SC2310,SC2312 # what is asked in conditions here returns its own failures
# shellcheck disable=SC2154,SC2034 # settings and places are the runner's; arrays are shared with artifacts.sh
# The repository of a job: its work tree before the task, and afterwards a bundle of what the task
# has committed. Part of the job runner.

source "${BASH_SOURCE[0]%/*}/process.sh"
source "${BASH_SOURCE[0]%/*}/settings.sh"
source "${BASH_SOURCE[0]%/*}/skipped.sh"

# repository_git runs git in the repository, whoever owns it, without hooks and for a limited time,
# because the repository may be large.
repository_git() { # <argument...>
  timeout "${repository_seconds:-60}" git -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false -c gc.auto=0 -c maintenance.auto=false \
    -c commit.gpgSign=false -c advice.detachedHead=false -C "${repository}" "$@"
}

# repository_install makes the work tree, as the login user. After an interruption it continues: the
# archive's first file says whose the .git is.
repository_install() {
  local owner said group repository_seconds=170
  local -x GIT_LFS_SKIP_SMUDGE=1 # where git-lfs is set up for all users, it would ask the server
  [[ -n ${repository} && ! -e ${state}/repository ]] || return 0
  type -P git >/dev/null || result_fail dependency "git is missing in the guest" "install git in the VM's template"
  [[ -z ${lfs} ]] || type -P git-lfs >/dev/null \
    || result_fail dependency "git-lfs is missing in the guest" "install git-lfs in the VM's template, or submit the job without repository.lfs"
  { IFS= read -r owner <"${repository}/.git/linus-job"; } 2>/dev/null || owner=''
  if [[ ${owner} != "${job_id}" && -e ${repository} ]] && ! repository_is_empty; then
    result_fail invalid "repository.path: there is something at ${repository} in the VM" "choose another path, or remove it first"
  fi
  if ! { mkdir -p -- "${repository}" && [[ -w ${repository} ]]; } 2>/dev/null; then
    group=$(id -g)
    process_as_root install -d -o "${EUID}" -g "${group}" -- "${repository}" \
      || result_fail invalid "cannot make ${repository}" "choose another repository.path, or let the login user use sudo without a password"
  fi
  said=$(tar -x -m --no-same-owner -f "${home}/repository.tar" -C "${repository}" 2>&1 \
    && repository_git reset -q --hard "${commit}" 2>&1 && repository_submodules 2>&1 && repository_large_files 2>&1 && repository_name_committer 2>&1) \
    || result_fail invalid "cannot put the repository to ${repository}: ${said:0:1000}" "free some space on the VM's disk, or choose another ref"
  publish repository "${repository}"
  rm -f -- "${home}/repository.tar"
}

repository_is_empty() {
  local -a all
  shopt -s nullglob dotglob
  all=("${repository}"/*)
  shopt -u nullglob dotglob
  [[ -d ${repository} && ${#all[@]} == 0 ]]
}

# repository_submodules makes the work trees of the submodules that linus has sent along.
repository_submodules() {
  [[ ! -d ${repository}/.git/modules ]] || repository_git submodule --quiet update --init --recursive --no-fetch
}

# repository_large_files puts the large files that linus has sent along into the work tree, and has
# git keep others in LFS, too.
repository_large_files() {
  [[ -z ${lfs} ]] || { repository_git lfs install --local --skip-repo && repository_git lfs checkout; }
}

# repository_name_committer lets git commit if no committer is configured.
repository_name_committer() {
  [[ -n $(repository_git config user.email) ]] \
    || { repository_git config user.name linus && repository_git config user.email linus@localhost; }
}

# repository_collect adds the bundle to artifacts_names and artifacts_paths, if the task has
# committed or changed something.
repository_collect() { # <max bytes each>
  local -r bundle=${state}/repository.bundle
  local head loose said
  local -a refs=(HEAD)
  [[ -n ${repository} ]] || return 0
  rm -f -- "${bundle}" "${state}/repository.index"*
  if ! head=$(repository_git rev-parse --verify --quiet 'HEAD^{commit}') || ! repository_git cat-file -e "${commit}"; then
    skipped_tell repository.bundle "there is no repository at ${repository} any more, or without the commit that it was at"
    return
  fi
  repository_git update-ref -d refs/linus/uncommitted
  if ! loose=$(repository_loose "${head}"); then
    skipped_tell "uncommitted changes" "they could not be read in a minute"
  elif [[ -n ${loose} ]]; then
    repository_git update-ref refs/linus/uncommitted "${loose}"
    refs+=(refs/linus/uncommitted)
  fi
  [[ ${head} != "${commit}" || ${#refs[@]} != 1 ]] || return 0
  if repository_bundle && ((${#refs[@]} == 2 && $(stat -c %s -- "${bundle}") > $1)); then
    skipped_tell "uncommitted changes" "with them the bundle would have more than $1 bytes"
    rm -f -- "${bundle}"
    refs=(HEAD)
    [[ ${head} != "${commit}" ]] || return 0
    repository_bundle
  fi
  if [[ ! -e ${bundle} ]]; then
    [[ ${said} == *"empty bundle"* ]] || skipped_tell repository.bundle "git: ${said:0:300}"
    return
  fi
  artifacts_names+=(repository.bundle)
  artifacts_paths+=("${bundle}")
}

repository_bundle() {
  said=$(umask 022 && repository_git bundle create -q --version=2 "${bundle}" "${refs[@]}" --not "${commit}" 2>&1) \
    || ! rm -f -- "${bundle}"
}

# repository_loose prints a commit of what is in no commit, without ignored files, or nothing if
# there is nothing. The task's own index stays as it is.
repository_loose() { # <commit of HEAD>
  local tree
  local -x GIT_INDEX_FILE=${state}/repository.index GIT_AUTHOR_NAME=linus GIT_AUTHOR_EMAIL=linus@localhost GIT_COMMITTER_NAME=linus GIT_COMMITTER_EMAIL=linus@localhost
  cp -- "${repository}/.git/index" "${GIT_INDEX_FILE}" 2>/dev/null || repository_git read-tree "$1" || return
  repository_git add -A >/dev/null 2>&1 || return
  tree=$(repository_git write-tree 2>/dev/null) || return
  [[ ${tree} != "$(repository_git rev-parse "$1^{tree}")" ]] || return 0
  repository_git commit-tree -p "$1" -m "what was not committed" "${tree}"
}
