#!/usr/bin/env bats
# shellcheck disable=SC2154,SC2016,SC2312,SC2030,SC2031 # set by the helper; tasks are quoted on purpose

setup() {
  load runner
  runner_setup
  export HOME=${BATS_TEST_TMPDIR}/user GIT_CONFIG_NOSYSTEM=1
  mkdir "${HOME}"
  at=${HOME}/app
  send
}

teardown() { runner_teardown; }

git_as() { git -c user.name=t -c user.email=t@example -c init.defaultBranch=main "$@"; }

# send makes what linus sends: an archive of a .git, with whose it is first.
send() { # [<settings>...]
  local -r from=${BATS_TEST_TMPDIR}/from
  rm -rf -- "${from}"
  git_as init -q --template= "${from}"
  printf 'one\n' >"${from}/a.txt"
  printf '*.tmp\n' >"${from}/.gitignore"
  git_as -C "${from}" add -A
  git_as -C "${from}" commit -q -m one
  base=$(git -C "${from}" rev-parse HEAD)
  printf '%s\n' "${job_id}" >"${from}/.git/linus-job"
  rm -f -- "${from}/.git/index"
  tar -c -f "${home}/repository.tar" -C "${from}" .git/linus-job .git
  settings REPOSITORY=app "COMMIT=${base}" "$@"
}

collect() { # [<bytes each>]: sets bundle to where it is
  run bash "${runner}" artifacts 100 "${1:-1000000}" 10000000
  echo "${output}"
  [[ ${status} == 0 ]]
  local name path
  bundle=''
  while IFS= read -r -d '' name && IFS= read -r -d '' path && IFS= read -r -d '' _ && IFS= read -r -d '' _ && IFS= read -r -d '' _; do
    [[ ${name} != repository.bundle ]] || bundle=${path}
  done <"${state}/artifacts.index"
}

heads() { git bundle list-heads "${bundle}" | cut -d ' ' -f 2 | tr '\n' ' '; }

@test "the task runs in the work tree, and what it commits is a bundle" {
  task 'git status --porcelain --branch; cat a.txt; pwd; echo two >>a.txt; git commit -qam two; git log -1 --format=%ae'
  run_to_end
  [[ $(<"${state}/stdout") == "## main"$'\n'"one"$'\n'"${at}"$'\n'linus@localhost ]]
  [[ ${code} == 0 && ! -e ${home}/repository.tar ]]
  collect
  [[ $(heads) == "HEAD " ]]
  git -C "${BATS_TEST_TMPDIR}/from" bundle verify -q "${bundle}"
  git -C "${BATS_TEST_TMPDIR}/from" fetch -q "${bundle}" HEAD
  [[ $(git -C "${BATS_TEST_TMPDIR}/from" show FETCH_HEAD:a.txt) == $'one\ntwo' ]]
}

@test "what was not committed is in a commit of its own, and the index stays" {
  task 'echo two >>a.txt; git commit -qam two; echo three >>a.txt; echo new >new.txt; echo no >x.tmp; git rm -q --cached .gitignore'
  run_to_end
  collect
  [[ $(heads) == "HEAD refs/linus/uncommitted " ]]
  git -C "${BATS_TEST_TMPDIR}/from" fetch -q "${bundle}" refs/linus/uncommitted
  [[ $(git -C "${BATS_TEST_TMPDIR}/from" ls-tree --name-only FETCH_HEAD | tr '\n' ' ') == ".gitignore a.txt new.txt " ]]
  [[ $(git -C "${at}" status --porcelain | head -n 1) == "D  .gitignore" ]]
  collect # again
  [[ $(heads) == "HEAD refs/linus/uncommitted " ]]
}

@test "what was not committed and is too large leaves the commits" {
  task 'echo two >>a.txt; git commit -qam two; head -c 200000 /dev/urandom >large'
  run_to_end
  collect 100000
  [[ $(heads) == "HEAD " && ${output} == *"LINUS_ARTIFACT_SKIPPED:with them the bundle would have more than 100000 bytes: uncommitted changes"* ]]
}

@test "a task that changes nothing leaves no bundle, and one that ruins it a reason" {
  task 'git reset -q --hard'
  run_to_end
  collect
  [[ -z ${bundle} && ${output} == *LINUS_ARTIFACTS_SKIPPED:0* ]]
  rm -rf -- "${at}/.git"
  collect
  [[ -z ${bundle} && ${output} == *"LINUS_ARTIFACT_SKIPPED:there is no repository at ${at} any more"*": repository.bundle"* ]]
}

@test "what is there already is not written over, unless it is the job's own" {
  mkdir "${at}"
  echo mine >"${at}/a.txt"
  task true
  run start
  [[ ${status} != 0 && ${output} == *"repository.path: there is something at ${at} in the VM"* && $(<"${at}/a.txt") == mine ]]
  mkdir "${at}/.git"
  printf '%s\n' "${job_id}" >"${at}/.git/linus-job" # as if it were interrupted
  run_to_end
  [[ ${code} == 0 && $(<"${at}/a.txt") == one ]]
}

# with_large adds a large file to what linus sends.
with_large() {
  local -r from=${BATS_TEST_TMPDIR}/from
  local sum
  type -P git-lfs >/dev/null || skip "there is no git-lfs here"
  sum=$(printf 'large\n' | sha256sum)
  sum=${sum%% *}
  printf '*.bin filter=lfs\n' >"${from}/.gitattributes"
  printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 6\n' "${sum}" >"${from}/large.bin"
  git_as -C "${from}" add -A
  git_as -C "${from}" commit -q -m large
  base=$(git -C "${from}" rev-parse HEAD)
  mkdir -p "${from}/.git/lfs/objects/${sum:0:2}/${sum:2:2}"
  printf 'large\n' >"${from}/.git/lfs/objects/${sum:0:2}/${sum:2:2}/${sum}"
  rm -f -- "${from}/.git/index"
  tar -c -f "${home}/repository.tar" -C "${from}" .git/linus-job .git
}

@test "large files that were sent along are in the work tree, and new ones are such" {
  with_large
  settings REPOSITORY=app "COMMIT=${base}" LFS=yes
  task 'git status --porcelain; cat large.bin; echo new >new.bin; git add new.bin; git commit -qm new; git show HEAD:new.bin | head -n 1'
  run_to_end
  [[ $(<"${state}/stdout") == large$'\n'"version https://git-lfs.github.com/spec/v1" ]]
  collect
  [[ $(heads) == "HEAD " ]]
}

@test "without them nothing is asked of a server, however git is set up" {
  with_large
  git config --global filter.lfs.smudge 'git-lfs smudge -- %f'
  git config --global filter.lfs.process git-lfs\ filter-process
  git config --global filter.lfs.required true
  settings REPOSITORY=app "COMMIT=${base}"
  task 'git status --porcelain; head -n 1 large.bin'
  run_to_end
  [[ $(<"${state}/stdout") == "version https://git-lfs.github.com/spec/v1" ]]
}

@test "a guest without git-lfs says so" {
  settings REPOSITORY=app "COMMIT=${base}" LFS=yes
  task true
  mkdir "${BATS_TEST_TMPDIR}/bin"
  local tool
  for tool in /usr/bin/* /bin/*; do
    [[ ${tool##*/} == git-lfs ]] || ln -sf "${tool}" "${BATS_TEST_TMPDIR}/bin/${tool##*/}"
  done
  PATH=${BATS_TEST_TMPDIR}/bin run start
  [[ ${status} == 2 && ${output} == *"git-lfs is missing in the guest"* && ! -e ${at} ]]
}

@test "an absolute path, and a directory of the task's own" {
  send "REPOSITORY=${HOME}/src/it" CWD=/
  task 'pwd'
  run_to_end
  [[ $(<"${state}/stdout") == / && $(<"${HOME}/src/it/a.txt") == one ]]
}

@test "hooks and monitors of the task's own do not run when its work is collected" {
  task 'printf "#!/bin/sh\necho ran >>%s/ran\n" "${HOME}" >"${HOME}/evil"; chmod +x "${HOME}/evil"
    mkdir -p .git/hooks; cp "${HOME}/evil" .git/hooks/post-index-change; git config core.fsmonitor "${HOME}/evil"; echo two >>a.txt'
  run_to_end
  rm -f -- "${HOME}/ran"
  collect
  [[ $(heads) == "refs/linus/uncommitted " && ! -e ${HOME}/ran ]]
}

@test "a guest without git says so" {
  task true
  mkdir "${BATS_TEST_TMPDIR}/bin"
  local tool
  for tool in /usr/bin/* /bin/*; do
    [[ ${tool##*/} == git* ]] || ln -sf "${tool}" "${BATS_TEST_TMPDIR}/bin/${tool##*/}"
  done
  PATH=${BATS_TEST_TMPDIR}/bin run start
  [[ ${status} == 2 && ${output} == *"git is missing in the guest"* ]]
}
