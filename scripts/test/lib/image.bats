#!/usr/bin/env bats
# lib/image.sh: cloud images come whole or not at all.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
# shellcheck source=../helper/lib.bash
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs log result run image
  result_begin 1
  run_init
  source_dir=${BATS_TEST_TMPDIR}/vendor
  mkdir "${source_dir}"
  printf 'QFI\373one' >"${source_dir}/disk.img"
  sum=$(sha256sum <"${source_dir}/disk.img")
  sum=${sum%% *}
  image_os=test-1
  image_url=file://${source_dir}/disk.img
  image_sums=SUMS
  dir=${BATS_TEST_TMPDIR}/images
}

@test "every system of the table has a URL, a sum file and a user" {
  local os
  for os in ubuntu ubuntu-24.04 debian debian-12 debian-13 almalinux almalinux-9 rocky rocky-9; do
    image_lookup "${os}"
    [[ ${image_url} == https://* && -n ${image_sums} && -n ${image_user} && ${image_os} == "${os%%-*}"-* ]]
  done
  image_lookup beos
  [[ -z ${image_os} && ${image_known} == *debian-13* ]]
}

@test "an image is fetched, checked and named by what it is" {
  image_obtain "${dir}" "${sum}" 2>/dev/null
  [[ ${image_file} == "${dir}/test-1.qcow2" && -f ${image_file} && ! -e ${dir}/test-1.part ]]
  printf 'raw bytes' >"${source_dir}/disk.img"
  sum=$(sha256sum <"${source_dir}/disk.img")
  sum=${sum%% *}
  image_os=test-2
  image_obtain "${dir}" "${sum}" 2>/dev/null
  [[ ${image_file} == "${dir}/test-2.raw" ]]
}

@test "a wrong checksum leaves no file and is exit 5" {
  run image_obtain "${dir}" "${sum/[0-9]/f}0"
  [[ ${status} -eq 5 && ${output} == *'the checksum of'* ]]
  [[ ! -e ${dir}/test-1.qcow2 && ! -e ${dir}/test-1.raw && ! -e ${dir}/test-1.part ]]
}

@test "an image already there is used when right and replaced when not" {
  image_obtain "${dir}" "${sum}" 2>/dev/null
  rm "${source_dir}/disk.img"
  image_obtain "${dir}" "${sum}" 2>/dev/null
  [[ -f ${image_file} ]]
  printf 'rotten' >"${image_file}"
  printf 'QFI\373one' >"${source_dir}/disk.img"
  image_obtain "${dir}" "${sum}" 2>/dev/null
  cmp "${image_file}" "${source_dir}/disk.img"
}

@test "the vendor's sum file is read in each of its forms" {
  local sum512
  sum512=$(sha512sum <"${source_dir}/disk.img")
  sum512=${sum512%% *}
  local line
  for line in "${sum}  disk.img" "${sum} *disk.img" "SHA256 (disk.img) = ${sum}" "${sum512}  disk.img" "SHA512 (disk.img) = ${sum512}"; do
    rm -rf "${dir}"
    printf '%s\n' "# a comment" "${sum/[0-9]/f}  other-disk.img" "${line}" >"${source_dir}/SUMS"
    image_obtain "${dir}" '' 2>/dev/null
    [[ -f ${image_file} ]]
  done
}

@test "a sum file without the image, and one that cannot be had, are exit 5 with a remedy" {
  printf '%s\n' "${sum}  other.img" >"${source_dir}/SUMS"
  run image_obtain "${dir}" ''
  [[ ${status} -eq 5 && ${output} == *'has no checksum for disk.img'* ]]
  rm "${source_dir}/SUMS"
  run image_obtain "${dir}" ''
  [[ ${status} -eq 5 && ${output} == *'could not fetch'* ]]
}

@test "two runs at once: one fetches, the other waits and finds it" {
  stub_program cp 'echo fetched >>'"${BATS_TEST_TMPDIR}"'/fetches; /bin/sleep 0.3; exec /bin/cp "$@"'
  (
    run_init
    image_obtain "${dir}" "${sum}"
  ) 2>/dev/null 3>&- &
  local -r other=$!
  image_obtain "${dir}" "${sum}" 2>/dev/null
  wait "${other}"
  [[ $(<"${BATS_TEST_TMPDIR}/fetches") == fetched ]]
}

@test "clean-up takes an unfinished file, never that of a run that now holds the lock" {
  mkdir "${dir}"
  image_part=${dir}/test-1.part
  : >"${image_part}"
  image_clean
  [[ ! -e ${dir}/test-1.part ]]
  image_obtain "${dir}" "${sum}" 2>/dev/null
  : >"${dir}/test-1.part"
  image_clean
  [[ -e ${dir}/test-1.part ]]
}

@test "names without a version are the one that is meant, of Debian the older" {
  local pair
  for pair in ubuntu=ubuntu-24.04 debian=debian-12 almalinux=almalinux-9 rocky=rocky-9; do
    image_lookup "${pair%=*}"
    [[ ${image_os} == "${pair#*=}" ]]
  done
}
