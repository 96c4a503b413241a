package qemu

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/lab/state"
)

const testVM = `agent: enabled=1
boot: order=scsi0;net0
cores: 2
memory: 2048
name: linus-job-1
net0: virtio=BC:24:11:AA:BB:CC,bridge=vmbr0
scsi0: local-lvm:vm-100-disk-0,size=10G
scsi1: local-lvm:vm-100-cloudinit,media=cdrom
smbios1: uuid=6c4b7a52-0d3a-4f63-8d7f-e9f4f35f1b2a
`

func TestMachineArgs_FollowTheConfig(t *testing.T) {
	drives := []machineDrive{
		{slot: "scsi0", path: "/d/disk", format: "qcow2"},
		{slot: "scsi1", path: "/d/seed", format: "raw", cdrom: true},
	}
	tests := []struct {
		name string
		edit func(*machine)
		want []string // each a part of the command line
		not  []string
	}{
		{"emulated", func(*machine) {}, []string{
			"-accel tcg,thread=multi,tb-size=128 -cpu max", "-smp 2,sockets=1,cores=2", "-m 2048",
			"-name linus-job-1", "-uuid 6c4b7a52-0d3a-4f63-8d7f-e9f4f35f1b2a",
			"file=/d/disk,if=none,id=drive-scsi0,format=qcow2,cache=unsafe,discard=unmap",
			"scsi-hd,bus=scsihw0.0,scsi-id=0,drive=drive-scsi0,id=scsi0,bootindex=1",
			"scsi-cd,bus=scsihw0.0,scsi-id=1,drive=drive-scsi1,id=scsi1,bootindex=2",
			"tap,id=net0,ifname=tap100i0,script=/r/tap-up,downscript=no",
			"virtio-net-pci,netdev=net0,mac=BC:24:11:AA:BB:CC",
			"name=org.qemu.guest_agent.0", "-daemonize",
		}, []string{"-accel kvm"}},
		{"KVM", func(m *machine) { m.kvm = true }, []string{"-accel kvm -cpu host"}, []string{"tcg"}},
		{"no agent, no port for it", func(m *machine) { m.conf.Delete("agent") }, nil, []string{"org.qemu.guest_agent.0"}},
		{"sockets multiply cores", func(m *machine) { m.conf.Set("sockets", "2") }, []string{"-smp 4,sockets=2,cores=2"}, nil},
		{"memory as 9.x writes it", func(m *machine) { m.conf.Set("memory", "current=1024") }, []string{"-m 1024"}, nil},
		{"PVE's defaults", func(m *machine) { m.conf = state.ParseConf("") }, []string{"-smp 1,", "-m 512", "-name vm100"}, []string{"-netdev"}},
		{"a controller for each disk", func(m *machine) {
			m.conf.Set("scsihw", "virtio-scsi-single")
			m.drives[0].thread = true
			m.drives = append(m.drives, machineDrive{slot: "scsi30", path: "/d/v", format: "raw", ro: true, serial: "linus1"})
		}, []string{
			"-device pci-bridge,id=pci.3,chassis_nr=3,bus=pci.0,addr=0x5",
			"-object iothread,id=iothread-virtioscsi0 -device virtio-scsi-pci,id=virtioscsi0,bus=pci.3,addr=0x1,iothread=iothread-virtioscsi0",
			"scsi-hd,bus=virtioscsi0.0,channel=0,scsi-id=0,lun=0,drive=drive-scsi0,id=scsi0,bootindex=1",
			"scsi-cd,bus=virtioscsi1.0,channel=0,scsi-id=0,lun=1,drive=drive-scsi1,id=scsi1,bootindex=2",
			"-device virtio-scsi-pci,id=virtioscsi30,bus=pci.3,addr=0x1f -drive file=/d/v,",
			"lun=30,serial=linus1,drive=drive-scsi30,id=scsi30",
		}, []string{"scsihw0"}},
		{"ide and virtio drives", func(m *machine) {
			m.drives = []machineDrive{{slot: "virtio0", path: "/d/a,b", format: "raw"}, {slot: "ide2", path: "/d/c", format: "raw", cdrom: true}}
		}, []string{"file=/d/a,,b,", "virtio-blk-pci,drive=drive-virtio0", "ide-cd,bus=ide.1,unit=0,drive=drive-ide2"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := machine{id: 100, conf: state.ParseConf(testVM), runDir: "/r", serial: "/l/100.log", tapUp: "/r/tap-up", drives: slices.Clone(drives)}
			tt.edit(&m)
			args, err := m.args()
			if err != nil {
				t.Fatal(err)
			}
			line := strings.Join(args, " ")
			for _, part := range tt.want {
				if !strings.Contains(line, part) {
					t.Errorf("no %q in\n%s", part, line)
				}
			}
			for _, part := range tt.not {
				if strings.Contains(line, part) {
					t.Errorf("%q in\n%s", part, line)
				}
			}
		})
	}
}

func TestMachineArgs_RefuseBadNumbers(t *testing.T) {
	for _, key := range []string{"cores", "sockets", "memory"} {
		m := machine{id: 100, conf: state.ParseConf(testVM)}
		m.conf.Set(key, "many")
		if _, err := m.args(); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: error %v does not name it", key, err)
		}
	}
}

func TestDriveSlots_BootOrderComesFirst(t *testing.T) {
	conf := state.ParseConf("boot: order=virtio1;scsi0\nscsi0: local:1\nscsi1: local:2,media=cdrom\nide2: none,media=cdrom\nvirtio1: local:3\n")
	if diff := cmp.Diff([]string{"virtio1", "scsi0", "scsi1"}, driveSlots(conf)); diff != "" {
		t.Errorf("slots (-want +got):\n%s", diff)
	}
}

func TestCheckMachine_SaysWhatTheHostLacks(t *testing.T) {
	tests := []struct {
		name, key, value, want string
	}{
		{"another bridge", "net0", "virtio=BC:24:11:AA:BB:CC,bridge=vmbr7", "bridge 'vmbr7' does not exist"},
		{"a SATA disk", "sata0", "local-lvm:vm-100-disk-1", "sata0: the lab's machines have no SATA controller; use scsi"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			conf := state.ParseConf(testVM)
			conf.Set(tt.key, tt.value)
			if err := checkMachine(conf, "vmbr0"); err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	if err := checkMachine(state.ParseConf(testVM), "vmbr0"); err != nil {
		t.Errorf("a machine that fits is refused: %v", err)
	}
}
