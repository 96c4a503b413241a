#!/usr/bin/env bats
# shellcheck disable=SC2016,SC2312 # commands are quoted on purpose

setup() {
  export HOME=${BATS_TEST_TMPDIR}/home
  tree=${HOME}/linus-run/app
  state=${HOME}/linus-run/.app
  local=${BATS_TEST_TMPDIR}/local
  mkdir -p "${HOME}" "${local}/dir"
  printf 'one\n' >"${local}/one"
  printf '#!/bin/sh\n' >"${local}/dir/tool"
  printf 'odd\n' >"${local}"/$'an odd\n-name ]$(x)'
  chmod +x "${local}/dir/tool"
  ln -s one "${local}/link"
  : >"${BATS_TEST_TMPDIR}/gone"
  user=()
}

# as_user has what is run be somebody whom modes concern.
as_user() {
  ((EUID > 0)) || user=(setpriv '--bounding-set=-dac_override,-dac_read_search,-fowner' --)
}

# run_tree sends the files and runs a command there.
run_tree() { # <held> <sub> <file>... -- <command>...
  local -r sent=${BATS_TEST_TMPDIR}/sent held=$1 sub=$2
  local -a files=()
  shift 2
  while [[ $1 != -- ]]; do
    files+=("$1")
    shift
  done
  shift
  mkdir "${sent}"
  cp "${BATS_TEST_DIRNAME}/../../guest/run-tree.sh" "${sent}/run"
  printf '%s\0' app RUN "${sub}" "${held}" >"${sent}/settings"
  cp "${BATS_TEST_TMPDIR}/gone" "${sent}/gone"
  printf '%s\n' "${files[@]}" >"${sent}/index"
  tar -C "${local}" -czf "${sent}/tree.tgz" --no-recursion -- "${files[@]}"
  [[ -z ${broken:-} ]] || echo rubbish >"${sent}/tree.tgz"
  sum=$(sha256sum <"${sent}/index")
  sum=${sum%% *}
  status=0
  output=$(setsid --wait "${user[@]}" bash "${sent}/run" "$@" 2>"${BATS_TEST_TMPDIR}/stderr") || status=$?
  stderr=$(<"${BATS_TEST_TMPDIR}/stderr")
  rm -rf "${sent:?}"
}

all=(one dir/tool link $'an odd\n-name ]$(x)')

# changes prints what the command has made or changed (+) and what is gone (-).
changes() {
  tar -xOzf "${state}/RUN.changes.tgz" changes | sort -z | tr '\0' '\n'
}

# kept prints the files of an archive, without a directory as they were or as they are.
kept() { # <base|tree>
  tar -tzf "${state}/RUN.changes.tgz" | sed -n "s,^$1/,,p" | sort
}

@test "the command runs in the tree as it was sent, and has nothing of ours around it" {
  run_tree '' dir "${all[@]}" -- bash -c 'pwd; cat ../one ../an*; readlink ../link; [[ -x tool ]] && echo executable; ls -A ..; ls "${BASH_SOURCE[0]:-/none}"; exit 7'
  [[ ${status} == 7 ]]
  [[ ${output} == "${tree}/dir"$'\none\nodd\none\nexecutable\n'* ]]
  [[ $(changes) == '' && $(kept base) == '' && $(kept tree) == '' ]]
  [[ ! -e ${BATS_TEST_TMPDIR}/sent ]]
}

@test "what the command changes, makes and removes is kept, as it was and as it is" {
  run_tree '' '' "${all[@]}" -- bash -c 'echo two >one; rm dir/tool; mkdir -p new/deep .git; echo n >new/deep/file; echo g >.git/config; printf more >>an*; touch link -h'
  [[ ${status} == 0 ]]
  [[ $(tar -xOzf "${state}/RUN.changes.tgz" base/one) == one && $(tar -xOzf "${state}/RUN.changes.tgz" tree/one) == two ]]
  [[ $(kept base) == *dir/tool* && $(kept tree) != *dir/tool* && $(changes) == *-dir/tool* ]]
  [[ $(kept base) == *'an odd'* && $(kept tree) == *'an odd'* ]]
  [[ $(kept tree) == *new/deep/file* && $(kept base) != *new* && $(kept tree) != *.git* ]]
}

@test "what is written with an old time is a change, too, and so is a mode" {
  run_tree '' '' "${all[@]}" -- bash -c 'cp -p one keep; echo two >one; touch -r keep one; chmod -x dir/tool; rm keep'
  [[ $(kept tree) == $'dir/tool\none' ]]
}

@test "what git would ignore is not kept" {
  type -P git >/dev/null || skip 'git is not installed'
  printf 'out/\n*.o\n' >"${local}/.gitignore"
  run_tree '' '' "${all[@]}" .gitignore -- bash -c 'mkdir out; echo x >out/a; echo x >b.o; echo x >c'
  [[ $(kept tree) == c ]]
}

@test "what is too much is left out, and said" {
  run_tree '' '' "${all[@]}" -- bash -c 'truncate -s 65M large; echo two >one; echo small >small'
  [[ $(kept tree) == $'one\nsmall' && $(changes) == $'+large\n+one\n+small' && ${stderr} == *'1 files cannot be read, are too large'*'--pull'* ]]
}

@test "a tree that stays gets what is new, loses what is gone, and keeps what commands have made" {
  run_tree '' '' "${all[@]}" -- bash -c 'mkdir build; echo made >build/out; echo theirs >one; rm dir/tool'
  rm "${local}/link"
  printf 'link\0' >"${BATS_TEST_TMPDIR}/gone"
  printf 'new\n' >"${local}/dir/new"
  run_tree "${sum}" '' dir/new -- bash -c 'cat one build/out dir/new; [[ -x dir/tool ]]; ls link'
  [[ ${status} == 2 && ${output} == $'one\nmade\nnew' ]]
}

@test "a directory that becomes a file, and a file that becomes a directory" {
  run_tree '' '' "${all[@]}" -- true
  rm -r "${local}/dir" "${local}/one"
  mkdir "${local}/one"
  echo file >"${local}/dir"
  echo inside >"${local}/one/inside"
  printf 'dir/tool\0one\0' >"${BATS_TEST_TMPDIR}/gone"
  run_tree "${sum}" '' dir one/inside -- cat dir one/inside
  [[ ${status} == 0 && ${output} == $'file\ninside' ]]
}

@test "a tree that is not what it was compared with is not run in" {
  run_tree '' '' "${all[@]}" -- true
  run_tree wrong '' one -- echo ran
  [[ ${status} == 125 && ${output} == '' && ${stderr} == *'has changed since it was compared'* ]]
  run_tree '' '' "${all[@]}" -- echo ran
  [[ ${status} == 0 && ${output} == ran ]]
}

@test "what is renamed, swapped or written under a clock that was set back is a change" {
  run_tree '' '' "${all[@]}" -- bash -c 'mv dir moved'
  [[ $(changes) == $'+moved/tool\n-dir/tool' && $(kept tree) == moved/tool && $(kept base) == dir/tool ]]
  mkdir -p "${local}/a" "${local}/b"
  echo A >"${local}/a/f"
  echo B >"${local}/b/f"
  run_tree "${sum}" '' a/f b/f -- bash -c 'mv a t; mv b a; mv t b'
  [[ $(changes) == $'+a/f\n+b/f' && $(tar -xOzf "${state}/RUN.changes.tgz" tree/a/f) == B ]]
  # The times of what a stopped clock would write: those of before.
  run_tree "${sum}" '' a/f b/f -- bash -c 'echo new >n; touch -d 2001-01-01 n; mv n a/f'
  [[ $(changes) == +a/f ]]
}

@test "what is only touched is no change, whatever its size" {
  run_tree '' '' "${all[@]}" -- bash -c 'touch one; cp -p one two; mv two one'
  [[ ${status} == 0 && $(changes) == '' ]]
}

@test "a directory that nobody may read is no proof that what was in it is gone" {
  as_user
  run_tree '' '' "${all[@]}" -- chmod 0 dir
  [[ ${status} == 0 && $(changes) == $'+dir\n-dir/tool' && $(kept tree) == '' && ${stderr} == *'cannot be read'* ]]
}

@test "what is in the way in a tree that stays is removed, and nothing beyond a link" {
  mkdir -p "${HOME}/else/deep" "${local}/dir/deep"
  echo else | tee "${HOME}/else/tool" >"${HOME}/else/deep/gone"
  echo here | tee "${local}/dir/deep/gone" >"${local}/dir/deep/file"
  run_tree '' '' "${all[@]}" dir/deep/gone dir/deep/file -- bash -c 'rm -r dir one; echo file >dir; mkdir one; echo left >one/left'
  run_tree "${sum}" '' one -- bash -c 'cat one dir/deep/*; [[ -x dir/tool ]]; rm -r dir; ln -s ~/else dir'
  [[ ${status} == 0 && ${output} == $'one\nhere\nhere' ]]
  printf 'dir/deep/gone\0' >"${BATS_TEST_TMPDIR}/gone"
  run_tree "${sum}" '' one -- bash -c 'cat dir/deep/*; [[ -x dir/tool && ! -L dir ]]'
  [[ ${status} == 0 && ${output} == here && $(<"${HOME}/else/deep/gone") == else && $(<"${HOME}/else/tool") == else ]]
}

@test "directories that cannot be written are no hindrance" {
  as_user
  run_tree '' '' "${all[@]}" -- bash -c 'mkdir -p cache/mod; echo c >cache/mod/f; chmod -R a-w cache; chmod 0 dir'
  printf 'dir/tool\0' >"${BATS_TEST_TMPDIR}/gone"
  printf 'new\n' >"${local}/dir/new"
  run_tree "${sum}" '' dir/new -- cat cache/mod/f dir/new
  [[ ${status} == 0 && ${output} == $'c\nnew' ]]
  : >"${BATS_TEST_TMPDIR}/gone"
  run_tree '' '' "${all[@]}" -- ls cache
  [[ ${status} == 2 ]]
}

@test "a tree that cannot be unpacked is not run in, and the next run makes it anew" {
  run_tree '' '' "${all[@]}" -- true
  broken=yes run_tree "${sum}" '' one -- echo ran
  [[ ${status} == 125 && ${output} == '' && ${stderr} == *'could not be put in place'* && ! -e ${state}/index ]]
  run_tree '' '' "${all[@]}" -- cat dir/tool
  [[ ${status} == 0 ]]
}

@test "two runs do not share a tree at once" {
  run_tree '' '' "${all[@]}" -- true
  exec {lock}>"${state}/lock"
  flock "${lock}"
  run_tree '' '' "${all[@]}" -- echo ran
  exec {lock}>&-
  [[ ${status} == 125 && ${stderr} == *'another run uses this tree'* ]]
}

@test "a command that is not there, one that is a function of ours, and one that is ended by a signal" {
  run_tree '' '' "${all[@]}" -- no-such-command
  [[ ${status} == 127 && ${stderr} == 'env: '*no-such-command* && ${stderr} != *'line '* ]]
  run_tree '' dir "${all[@]}" -- ../one
  [[ ${status} == 126 && ${stderr} == 'env: '*one*'Permission denied' ]]
  run_tree '' '' "${all[@]}" -- keep_changes
  [[ ${status} == 127 ]]
  run_tree '' '' "${all[@]}" -- bash -c 'echo two >one; kill -INT 0'
  [[ ${status} == 130 && $(kept tree) == one ]]
}
