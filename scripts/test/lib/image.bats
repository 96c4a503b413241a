#!/usr/bin/env bats
# lib/image.sh: cloud images come whole or not at all.

# The library's globals are set and read across files; each test is a subshell.
# shellcheck disable=SC2030,SC2031,SC2034,SC2154
source "${BATS_TEST_DIRNAME}/../helper/lib.bash"

setup() {
  load_libs image
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

@test "what is asked for by https comes by https only, wherever it leads; sums not by a redirect wget follows" {
  stub_program curl 'printf "%s\n" "$*" >>'"${BATS_TEST_TMPDIR}/argv; exit 22"
  stub_program wget 'printf "%s\n" "$*" >>'"${BATS_TEST_TMPDIR}/argv; exit 22"
  image_url=https://vendor.example/disk.img
  run image_obtain "${dir}" "${sum}"
  [[ ${status} -eq 5 && $(<"${BATS_TEST_TMPDIR}/argv") == *'--proto =https --proto-redir =https '* ]]
  rm "${BATS_TEST_TMPDIR}/argv"
  run image_obtain "${dir}" ''
  [[ ${status} -eq 5 && $(<"${BATS_TEST_TMPDIR}/argv") == *'--proto =https --proto-redir =https '*/SUMS ]]
  rm "${BATS_TEST_TMPDIR}/argv"
  image_url=http://vendor.example/disk.img
  run image_obtain "${dir}" "${sum}"
  [[ ${status} -eq 5 && $(<"${BATS_TEST_TMPDIR}/argv") == *'--proto =http,https --proto-redir =http,https '* ]]
  rm "${BATS_TEST_TMPDIR}/argv" "${BATS_TEST_TMPDIR}/bin/curl"
  hash -r
  PATH=${BATS_TEST_TMPDIR}/bin:$(programs_but curl)
  image_url=https://vendor.example/disk.img
  run image_obtain "${dir}" ''
  [[ ${status} -eq 5 && $(<"${BATS_TEST_TMPDIR}/argv") == *' --max-redirect=0 '*/SUMS ]]
}

# The programs of PATH but one, as links in a directory.
programs_but() { # <name>
  local -r links=${BATS_TEST_TMPDIR}/programs
  mkdir -p "${links}"
  ln -s /usr/bin/* "${links}"
  ln -s /bin/* "${links}" 2>/dev/null || : # they may be the same
  rm "${links}/$1"
  printf '%s\n' "${links}"
}

@test "a real curl is led to no other protocol" {
  command -v curl >/dev/null || skip 'no curl'
  perl -MIO::Socket::INET -e '
    my $s = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", ReuseAddr => 1) or die;
    open my $f, ">", "$ARGV[0].new" or die; print $f $s->sockport; close $f; rename "$ARGV[0].new", $ARGV[0];
    while (my $c = $s->accept) { my $r = <$c>; while (defined(my $l = <$c>)) { last if $l =~ /^\r?$/ }
      if ($r =~ m{/away}) { print $c "HTTP/1.1 302 F\r\nLocation: ftp://127.0.0.1/x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" }
      else { print $c "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nQFI\xfb" }
      close $c }' "${BATS_TEST_TMPDIR}/port" >/dev/null 2>&1 3>&- &
  local -r server=$!
  until [[ -s ${BATS_TEST_TMPDIR}/port ]]; do sleep 0.05; done
  local port
  port=$(<"${BATS_TEST_TMPDIR}/port")
  image_fetch "http://127.0.0.1:${port}/disk.img" "${BATS_TEST_TMPDIR}/got" 2>/dev/null
  [[ -s ${BATS_TEST_TMPDIR}/got ]]
  run image_fetch "http://127.0.0.1:${port}/away" "${BATS_TEST_TMPDIR}/got"
  [[ ${status} -eq 5 && ${output} == *'not supported'* ]]
  kill "${server}"
}

# A vendor with a key of its own, and a list that it has signed.
vendor_signs() { # sets vendor_home, vendor_key
  if ! command -v gpg >/dev/null || ! command -v gpgv >/dev/null; then
    skip 'no gpg'
  fi
  vendor_home=${BATS_TEST_TMPDIR}/vendor-home
  mkdir -m 0700 "${vendor_home}"
  gpg --homedir "${vendor_home}" --batch --quiet --passphrase '' --quick-generate-key vendor@example rsa3072 sign never 2>/dev/null
  gpg --homedir "${vendor_home}" --batch --export >"${vendor_home}/key" 2>/dev/null
  read_fingerprint "${vendor_home}/key"
  vendor_key=${fingerprint}
  printf '%s\n' "${sum}  disk.img" >"${source_dir}/SUMS"
  sign_sums
  vendor_keyring=$(base64 "${vendor_home}/key")
  image_find_key() { # in place of the vendors' own
    image_signature=SUMS.sig image_signer=${vendor_key} image_keyring=${vendor_keyring}
  }
}

read_fingerprint() { # <key>; fingerprint
  gpg --homedir "${BATS_TEST_TMPDIR}" --batch --with-colons --show-keys "$1" >"${BATS_TEST_TMPDIR}/listed" 2>/dev/null
  fingerprint=$(awk -F: '$1 == "fpr" { print $10; exit }' "${BATS_TEST_TMPDIR}/listed")
}

sign_sums() {
  gpg --homedir "${vendor_home}" --batch --yes --quiet --passphrase '' --pinentry-mode loopback \
    --detach-sign -o "${source_dir}/SUMS.sig" "${source_dir}/SUMS" 2>/dev/null
}

@test "a list of sums counts only with its vendor's signature, where the vendor signs" {
  vendor_signs
  image_obtain "${dir}" '' 2>/dev/null
  [[ -f ${image_file} ]]
  rm -r "${dir}"
  # Changed after it was signed; signed by another; no signature at all.
  printf '%s\n' "${sum}  disk.img" '# more' >"${source_dir}/SUMS"
  run image_obtain "${dir}" ''
  [[ ${status} -eq 5 && ${output} == *"is not signed by its vendor's key ${vendor_key}"* ]]
  sign_sums
  vendor_key=0000000000000000000000000000000000000000
  run image_obtain "${dir}" ''
  [[ ${status} -eq 5 && ${output} == *'is not signed by'* ]]
  rm "${source_dir}/SUMS.sig"
  run image_obtain "${dir}" ''
  [[ ${status} -eq 5 && ${output} == *'could not fetch'* ]]
  [[ ! -e ${dir}/test-1.qcow2 && ! -e ${dir}/test-1.part ]]
}

@test "without gpgv the signature is not checked, and that is said" {
  vendor_signs
  printf 'changed\n' >>"${source_dir}/SUMS"
  PATH=$(programs_but gpgv)
  run image_obtain "${dir}" ''
  [[ ${status} -eq 0 && ${output} == *'LINUS_WARNING:the signature of'*'is not checked: gpgv is missing'* ]]
}

@test "the keys that are shipped are whose they are said to be" {
  command -v gpg >/dev/null || skip 'no gpg'
  local os
  for os in ubuntu-24.04 almalinux-9; do
    image_find_key "${os}"
    base64 -d <<<"${image_keyring}" >"${BATS_TEST_TMPDIR}/key"
    read_fingerprint "${BATS_TEST_TMPDIR}/key"
    [[ ${fingerprint} == "${image_signer}" && -n ${image_signature} ]]
  done
  for os in debian-12 debian-13 rocky-9 custom-0123; do
    image_find_key "${os}"
    [[ -z ${image_signature}${image_signer}${image_keyring} ]]
  done
}

@test "a key that is no longer good signs nothing" {
  local word
  vendor_signs
  for word in EXPKEYSIG REVKEYSIG EXPSIG; do
    stub_program gpgv "printf '%s\n' '[GNUPG:] ${word} 0123 vendor' '[GNUPG:] VALIDSIG ${vendor_key} 2026-01-01 1 0 4 0 1 10 00 ${vendor_key}'"
    run image_obtain "${dir}" ''
    [[ ${status} -eq 5 && ${output} == *"is not signed by its vendor's key"* ]]
  done
  stub_program gpgv "printf '%s\n' '[GNUPG:] GOODSIG 0123 vendor' '[GNUPG:] VALIDSIG ${vendor_key} 2026-01-01 1 0 4 0 1 10 00 ${vendor_key}'"
  run image_obtain "${dir}" ''
  [[ ${status} -eq 0 ]]
}
