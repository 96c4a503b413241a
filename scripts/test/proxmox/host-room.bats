#!/usr/bin/env bats
# host-room.sh as a whole: a process, on a stub of Proxmox that it never calls.

source "${BATS_TEST_DIRNAME}/../helper/common.bash"

setup() {
  setup_stub
  export LINUS_PROC_DIR=${BATS_TEST_TMPDIR}/proc
  mkdir -p "${LINUS_PROC_DIR}/pressure"
  printf 'MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 4194304 kB\n' >"${LINUS_PROC_DIR}/meminfo"
  printf 'some avg10=12.50 avg60=1.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n' >"${LINUS_PROC_DIR}/pressure/memory"
}

# A lease of VM 201 that ends in so many seconds, and perhaps the VM.
lease() { # <seconds until its end> [<owner>]
  local uptime date
  uptime=$(cut -d. -f1 /proc/uptime)
  date=$(date +%s)
  mkdir -p "${LINUS_HOST_DIR}/leases"
  printf 'none %s %s pve local-lvm %(%s)T %s 1 1 %s %s\n' linus-job-1 "${2:-${owner}}" -1 "$(</proc/sys/kernel/random/boot_id)" \
    "$((uptime + $1))" "$((date + $1))" >"${LINUS_HOST_DIR}/leases/201-${job}"
}

read_end() { # until_end: seconds until the lease's end, by the clock since boot
  local uptime
  local -a fields
  uptime=$(cut -d. -f1 /proc/uptime)
  read -ra fields <"${LINUS_HOST_DIR}/leases/201-${job}"
  until_end=$((fields[9] - uptime))
}

@test "tells the memory and its pressure, and starts nothing of Proxmox" {
  run_script host-room
  assert_status 0
  assert_line 'LINUS_MEMORY:4096 16384 12.50'
  assert_line LINUS_RESULT:SUCCESS
  [[ ! -e ${PVE_STUB}/log ]]
  rm "${LINUS_PROC_DIR}/pressure/memory"
  run_script host-room
  assert_line 'LINUS_MEMORY:4096 16384 0'
  rm "${LINUS_PROC_DIR}/meminfo"
  run_script host-room
  assert_status 5
  assert_says LINUS_ERROR:
}

@test "a template is known by its ID and its config, not by its lock" {
  local first second
  ROOM_TEMPLATES='agent-template 9000 other 101 none' run_script host-room
  assert_status 0
  first=$(grep '^LINUS_TEMPLATE:agent-template 9000 ' <<<"${output:?}")
  assert_line "LINUS_TEMPLATE:9000 9000 ${first##* }"
  refute_line_like LINUS_TEMPLATE:other
  refute_line_like LINUS_TEMPLATE:101
  refute_line_like LINUS_TEMPLATE:none
  echo 'lock: backup' >>"${LINUS_PVE_DIR}/qemu-server/9000.conf"
  ROOM_TEMPLATES=agent-template run_script host-room
  assert_line "${first}"
  echo 'memory: 4096' >>"${LINUS_PVE_DIR}/qemu-server/9000.conf"
  ROOM_TEMPLATES=agent-template run_script host-room
  second=$(grep '^LINUS_TEMPLATE:agent-template 9000 ' <<<"${output:?}")
  [[ ${second} != "${first}" ]]
  add_vm 9001 'name: agent-template' 'template: 1'
  ROOM_TEMPLATES=agent-template run_script host-room
  refute_line_like LINUS_TEMPLATE:agent-template
}

@test "a lease is renewed" {
  add_vm 201 "#linus-job=${job} linus-owner=${owner} linus-vm=201"
  lease 60
  ROOM_LEASES="201:${job}:90000" run_script host-room
  assert_line "LINUS_LEASE:${job} renewed"
  read_end
  ((until_end > 89000))
}

@test "a lease is not renewed that is over, another's, being worked on, or of a VM that is gone" {
  add_vm 201 "#linus-job=${job} linus-owner=${owner} linus-vm=201"
  lease -5
  ROOM_LEASES="201:${job}:90000" run_script host-room
  assert_line "LINUS_LEASE:${job} over"
  read_end
  ((until_end < 0))
  lease 60 88888888-2222-4333-8444-555555555555
  ROOM_LEASES="201:${job}:90000" run_script host-room
  assert_line "LINUS_LEASE:${job} kept"
  lease 60
  (
    exec 7>>"${LINUS_HOST_DIR}/leases/.sweep"
    flock 7
    ROOM_LEASES="201:${job}:90000" run_script host-room
    assert_line "LINUS_LEASE:${job} kept"
  )
  read_end
  ((until_end < 61))
  ROOM_LEASES="202:${job}:90000" run_script host-room
  assert_line "LINUS_LEASE:${job} gone"
}

@test "a VM that was made without a lease gets one, once it is proven, and one with a lease loses it" {
  add_vm 201 "#linus-job=${job} linus-owner=${owner} linus-vm=201" "name: ${VM_NAME}"
  ROOM_LEASES="201:${job}:90000" run_script host-room
  assert_line "LINUS_LEASE:${job} kept"
  [[ ! -e ${LINUS_HOST_DIR}/leases/201-${job} ]]
  add_our_vm 201
  ROOM_LEASES="201:${job}:90000" run_script host-room
  assert_line "LINUS_LEASE:${job} renewed"
  read_end
  ((until_end > 89000))
  local -a fields
  read -ra fields <"${LINUS_HOST_DIR}/leases/201-${job}"
  [[ ${fields[0]} == none && ${fields[1]} == "${VM_NAME}" && ${fields[2]} == "${owner}" && ${fields[3]} == pve ]]
  ROOM_LEASES="201:${job}:0" run_script host-room
  assert_line "LINUS_LEASE:${job} renewed"
  [[ ! -e ${LINUS_HOST_DIR}/leases/201-${job} ]]
  ROOM_LEASES="201:${job}:0" run_script host-room
  assert_line "LINUS_LEASE:${job} renewed"
}

@test "no VM is gone because its host has no config of any" {
  rm "${LINUS_PVE_DIR}/.members"
  lease 60
  ROOM_LEASES="201:${job}:90000" run_script host-room
  refute_line_like "LINUS_LEASE:${job} gone"
}

@test "a VM is told of that somebody has made another, and none that is ours, gone or cannot be read" {
  local -r look="201:${job}:${VM_NAME} 202:${job}:${VM_NAME}"
  add_our_vm 201
  ROOM_VMS=${look} run_script host-room
  assert_status 0
  refute_line_like LINUS_DOUBT
  [[ ! -e ${PVE_STUB}/log ]]
  add_our_vm 201 '#what it is for'
  sed -i '/linus-job=/d' "${PVE_STUB}/vm/201"
  ROOM_VMS=${look} run_script host-room
  assert_line "LINUS_DOUBT:${job} its description does not carry linus-job=${job}"
  assert_line LINUS_RESULT:SUCCESS
  mkdir -p "${LINUS_PVE_DIR}/nodes/pve2/qemu-server"
  mv "${LINUS_PVE_DIR}/qemu-server/201.conf" "${LINUS_PVE_DIR}/nodes/pve2/qemu-server/"
  ROOM_VMS=${look} run_script host-room
  assert_line "LINUS_DOUBT:${job} its description does not carry linus-job=${job}"
  add_our_vm 201
  ROOM_VMS="201:${job}:linus-job-2" run_script host-room
  assert_line "LINUS_DOUBT:${job} its name is '${VM_NAME}', not 'linus-job-2'"
  spoil_config 201
  ROOM_VMS=${look} run_script host-room
  assert_status 0
  refute_line_like LINUS_DOUBT
}

@test "inputs are checked" {
  # shellcheck disable=SC2016 # that is the point
  ROOM_TEMPLATES='$(reboot)' run_script host-room
  assert_status 1
  ROOM_LEASES=201 run_script host-room
  assert_status 1
  # shellcheck disable=SC2016 # that is the point
  ROOM_VMS="201:${job}:"'$(reboot)' run_script host-room
  assert_status 1
  LINUS_OWNER=x ROOM_VMS="201:${job}:${VM_NAME}" run_script host-room
  assert_status 1
  LINUS_OWNER=x ROOM_LEASES="201:${job}:90000" run_script host-room
  assert_status 1
}
