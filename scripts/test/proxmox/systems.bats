#!/usr/bin/env bats
# create-vm.sh with the cloud image of each operating system: what is fetched
# from its vendor, how it is checked, and the commands that make the VM.

# Each test is a subshell, and its changes of the environment are for it alone.
# shellcheck disable=SC2030,SC2031
source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup_file() {
  start_greeter
}

teardown_file() {
  kill "${greeter_pid}"
  check_file
}

setup() {
  setup_stub
  export VM_TEMPLATE='' IMAGE_DIR=${BATS_TEST_TMPDIR}/images VM_CPU_TYPE=host
  printf 'QFI\373image' >"${BATS_TEST_TMPDIR}/disk.img"
  sum256=$(sha256sum "${BATS_TEST_TMPDIR}/disk.img")
  sum512=$(sha512sum "${BATS_TEST_TMPDIR}/disk.img")
  # No test has the vendors' secret keys; lib/image.bats checks signatures.
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program gpgv '
    [[ $(<"${*: -2:1}") == signature ]] || exit 2
    printf "[GNUPG:] %s\n" "GOODSIG x vendor" \
      "VALIDSIG D2EB44626FDDC30B513D5BB71A5D6C4C7DB87C81 x" "VALIDSIG BF18AC2876178908D6E71267D36CB86CB86B3716 x"'
  stub_program qemu-img 'echo "{\"virtual-size\": 2147483648}"'
  guest_interfaces '{"name":"e","hardware-address":"bc:24:11:00:00:01","ip-addresses":[{"ip-address":"127.0.0.1","ip-address-type":"ipv4"}]}'
  # Every vendor's servers: $vendor/URL, slashes as _.
  # shellcheck disable=SC2016 # the stub's own variables
  stub_program curl '
    while [[ $1 != -o ]]; do shift; done
    printf "%s\n" "curl ${*: -1}" >>"${PVE_STUB}/calls"
    url=${*: -1}
    cp -- "${PVE_STUB}/vendor/${url//\//_}" "$2" || exit 22'
  mkdir "${PVE_STUB}/vendor"
}

serve() { # <URL> <text, or empty: the image>
  local -r file=${PVE_STUB}/vendor/${1//\//_}
  if [[ -n ${2:-} ]]; then
    printf '%s\n' "$2" >"${file}"
  else
    cp "${BATS_TEST_TMPDIR}/disk.img" "${file}"
  fi
}

# The image is fetched, checked by its line in the vendor's list of sums, among
# lines of others, and becomes the VM's disk.
assert_created() { # <OS> <user> <image's URL> <name of the list> <line of the list> <file's name>
  local -r sums=${3%/*}/$4 name=${3##*/}
  serve "$3"
  serve "${sums}" "# of ${name}
0000000000000000000000000000000000000000000000000000000000000000  other-${name}
$5
0000000000000000000000000000000000000000000000000000000000000000  ${name}.manifest"
  local signature=''
  case $1 in
    ubuntu*) signature=${sums}.gpg ;;
    almalinux*) signature=${sums}.asc ;;
  esac
  [[ -z ${signature} ]] || serve "${signature}" signature
  VM_OS=$1 run_script create-vm
  assert_status 0
  assert_line "LINUS_VM_USER:$2"
  assert_line "LINUS_VM_OS:$1"
  assert_line LINUS_VM_IP:127.0.0.1
  read_vm_id
  local key want
  key=$(grep -o -- '--sshkeys [^ ]*' "${PVE_STUB}/calls")
  grep '^curl\|^qm \(create\|set\|resize\|start\) ' "${PVE_STUB}/calls" >"${BATS_TEST_TMPDIR}/made"
  want="curl ${sums}${signature:+
curl ${signature}}
curl $3
qm create ${id} --name linus-job-11111111 --cpu host --ostype l26 --scsihw virtio-scsi-single --scsi0 local-lvm:0,import-from=${IMAGE_DIR}/$6.qcow2,discard=on,iothread=1 --scsi1 local-lvm:cloudinit --serial0 socket --vga serial0 --cores 2 --memory 2048 --agent enabled=1 --net0 virtio,bridge=vmbr0 --ciuser $2 ${key} --ipconfig0 ip=dhcp --ciupgrade 0 --tags linus --description linus-job=${job} linus-owner=${owner} linus-vm=${id}
qm resize ${id} scsi0 10G
qm start ${id}"
  [[ $(<"${BATS_TEST_TMPDIR}/made") == "${want}" ]] || fail "made by:" "$(<"${BATS_TEST_TMPDIR}/made")" '--- not:' "${want}"
  assert_nothing_left
}

@test "ubuntu: 24.04" {
  local -r url=https://cloud-images.ubuntu.com/releases/24.04/release/ubuntu-24.04-server-cloudimg-amd64.img
  assert_created ubuntu-24.04 ubuntu "${url}" SHA256SUMS "${sum256%% *} *${url##*/}" ubuntu-24.04
  [[ ! -e ${IMAGE_DIR}/ubuntu-24.04.part ]]
}

@test "debian 12" {
  local -r url=https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2
  assert_created debian-12 debian "${url}" SHA512SUMS "${sum512%% *}  ${url##*/}" debian-12
}

@test "debian 13" {
  local -r url=https://cloud.debian.org/images/cloud/trixie/latest/debian-13-genericcloud-amd64.qcow2
  assert_created debian-13 debian "${url}" SHA512SUMS "${sum512%% *}  ${url##*/}" debian-13
}

@test "almalinux 9" {
  local -r url=https://repo.almalinux.org/almalinux/9/cloud/x86_64/images/AlmaLinux-9-GenericCloud-latest.x86_64.qcow2
  assert_created almalinux-9 almalinux "${url}" CHECKSUM "${sum256%% *}  ${url##*/}" almalinux-9
}

@test "rocky 9" {
  local -r url=https://dl.rockylinux.org/pub/rocky/9/images/x86_64/Rocky-9-GenericCloud-Base.latest.x86_64.qcow2
  assert_created rocky-9 rocky "${url}" CHECKSUM "SHA256 (${url##*/}) = ${sum256%% *}" rocky-9
}

@test "an image that is not what its vendor's sum says makes no VM" {
  local -r url=https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2
  serve "${url}" 'not the image'
  serve "${url%/*}/SHA512SUMS" "${sum512%% *}  ${url##*/}"
  VM_OS=debian-12 run_script create-vm
  assert_status 5
  assert_says "LINUS_ERROR:the checksum of ${url} is"
  refute_called 'qm create.*'
  [[ ! -e ${IMAGE_DIR}/debian-12.qcow2 && ! -e ${IMAGE_DIR}/debian-12.part ]]
}

@test "a vendor whose list lacks the image makes no VM" {
  local -r url=https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2
  serve "${url}"
  serve "${url%/*}/SHA512SUMS" "${sum512%% *}  another.qcow2"
  VM_OS=debian-12 run_script create-vm
  assert_status 5
  assert_says 'has no checksum for debian-12-genericcloud-amd64.qcow2'
  refute_called 'qm create.*'
}
