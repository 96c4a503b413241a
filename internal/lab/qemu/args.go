package qemu

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"linus/internal/lab/state"
	"linus/internal/lazyregexp"
)

// machineDrive is a disk or CD-ROM as QEMU sees it.
type machineDrive struct {
	slot   string // scsi0, virtio1, ide2
	path   string
	format string // raw or qcow2
	cdrom  bool
	ro     bool
	serial string
	thread bool // its controller has its own thread (iothread)
}

// machine is everything QEMU's command line depends on.
type machine struct {
	id      int
	conf    *state.Conf
	kvm     bool
	runDir  string
	pidFile string
	serial  string // the console's log file
	drives  []machineDrive
	tapUp   string // the script that QEMU runs with a new tap's name

	incoming string // where its memory comes from; "": it boots
}

var driveSlot = lazyregexp.New(`^([a-z]+)([0-9]+)$`)

// driveSlots returns a config's keys of non-empty drives, in boot order.
func driveSlots(conf *state.Conf) []string {
	var slots []string
	for key, d := range state.Drives(conf.Values) {
		if d.File != "none" {
			slots = append(slots, key)
		}
	}
	order := conf.BootOrder()
	rank := func(slot string) int {
		if at := slices.Index(order, slot); at >= 0 {
			return at
		}
		return len(order)
	}
	sort.SliceStable(slots, func(i, j int) bool { return rank(slots[i]) < rank(slots[j]) })
	return slots
}

// args returns the command line, without the program, to run in runDir. QEMU goes to the background
// only once the machine is set up, so that set-up errors are reported at once.
func (m machine) args() ([]string, error) {
	cores, err := m.number("cores", 1)
	if err != nil {
		return nil, err
	}
	sockets, err := m.number("sockets", 1)
	if err != nil {
		return nil, err
	}
	memory, err := m.number("memory", 512)
	if err != nil {
		return nil, err
	}
	name := cmp.Or(m.conf.Get("name"), fmt.Sprintf("vm%d", m.id))
	args := []string{
		"-name", name, "-daemonize", "-pidfile", m.pidFile,
		"-machine", "pc", "-smp", fmt.Sprintf("%d,sockets=%d,cores=%d", cores*sockets, sockets, cores),
		"-m", strconv.Itoa(memory),
		"-nodefaults", "-no-user-config", "-display", "none", "-vga", "none",
		"-serial", "file:" + m.serial,
		"-qmp", "unix:" + qmpName + ",server=on,wait=off",
		"-device", "virtio-rng-pci",
	}
	if singleSCSI(m.conf) {
		args = append(args, "-device", "pci-bridge,id=pci.3,chassis_nr=3,bus=pci.0,addr=0x5")
	} else {
		args = append(args, "-device", "virtio-scsi-pci,id=scsihw0")
	}
	if m.kvm {
		args = append(args, "-accel", "kvm", "-cpu", "host")
	} else {
		// A smaller translation cache halves the memory a machine takes, at no cost in time.
		args = append(args, "-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max")
	}
	if m.incoming != "" {
		args = append(args, "-incoming", m.incoming)
	}
	if uuid := state.Props(m.conf.Get("smbios1"))["uuid"]; uuid != "" {
		args = append(args, "-uuid", uuid)
	}
	if m.conf.AgentEnabled() {
		args = append(args,
			"-chardev", "socket,id=qga0,path="+state.AgentSocketName+",server=on,wait=off",
			"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=qga0,name=org.qemu.guest_agent.0")
	}
	for n, d := range m.drives {
		args = append(args, d.args(m.conf, n+1)...)
	}
	for n := range state.MaxNICs {
		nic, ok := state.ParseNIC(m.conf.Get(fmt.Sprintf("net%d", n)))
		if !ok {
			continue
		}
		id := fmt.Sprintf("net%d", n)
		args = append(args,
			"-netdev", fmt.Sprintf("tap,id=%s,ifname=%s,script=%s,downscript=no", id, tapName(m.id, n), m.tapUp),
			"-device", fmt.Sprintf("%s,netdev=%s,mac=%s,romfile=", nic.Device, id, nic.MAC))
	}
	return args, nil
}

func (d machineDrive) args(conf *state.Conf, bootIndex int) (args []string) {
	back := fmt.Sprintf("file=%s,if=none,id=%s,format=%s", strings.ReplaceAll(d.path, ",", ",,"), state.DriveID(d.slot), d.format)
	if d.cdrom {
		back += ",media=cdrom,readonly=on"
	} else {
		// A lab's disks need not survive a crash of the machine.
		back += ",cache=unsafe,discard=unmap"
	}
	if d.ro {
		back += ",readonly=on"
	}
	if c := d.controller(conf); c.device != "" {
		if c.thread != "" {
			args = append(args, "-object", "iothread,id="+c.thread)
		}
		args = append(args, "-device", c.device)
	}
	return append(args, "-drive", back, "-device", fmt.Sprintf("%s,bootindex=%d", d.device(conf), bootIndex))
}

// device is the drive's device, in the form of -device.
func (d machineDrive) device(conf *state.Conf) string {
	kind := "hd"
	if d.cdrom {
		kind = "cd"
	}
	match := driveSlot.FindStringSubmatch(d.slot)
	bus, unit := match[1], match[2]
	device := ""
	switch {
	case bus == "scsi" && singleSCSI(conf):
		device = fmt.Sprintf("scsi-%s,bus=%s.0,channel=0,scsi-id=0,lun=%s", kind, d.controller(conf).id, unit)
	case bus == "scsi":
		device = fmt.Sprintf("scsi-%s,bus=scsihw0.0,scsi-id=%s", kind, unit)
	case bus == "ide": // two per channel: ide2 is the first of the second channel
		n, _ := strconv.Atoi(unit)
		device = fmt.Sprintf("ide-%s,bus=ide.%d,unit=%d", kind, n/2, n%2)
	case bus == "virtio":
		device = "virtio-blk-pci"
	}
	if d.serial != "" {
		device += ",serial=" + d.serial
	}
	return fmt.Sprintf("%s,drive=%s,id=%s", device, state.DriveID(d.slot), d.slot)
}

// controller is a drive's own controller; without a device, the drive shares one.
type controller struct{ id, device, thread string }

// controller uses Proxmox's names and PCI addresses: a machine that continues from another's memory
// must have its disks where that machine had them, whenever they were plugged in.
func (d machineDrive) controller(conf *state.Conf) (c controller) {
	unit, scsi := strings.CutPrefix(d.slot, "scsi")
	n, err := strconv.Atoi(unit)
	if !scsi || err != nil || !singleSCSI(conf) {
		return c
	}
	c.id = fmt.Sprintf("virtioscsi%d", n)
	c.device = fmt.Sprintf("virtio-scsi-pci,id=%s,bus=pci.3,addr=0x%x", c.id, n+1)
	if d.thread {
		c.thread = "iothread-" + c.id
		c.device += ",iothread=" + c.thread
	}
	return c
}

// singleSCSI reports whether each SCSI disk has its own controller.
func singleSCSI(conf *state.Conf) bool { return conf.Get("scsihw") == "virtio-scsi-single" }

func (m machine) number(key string, fallback int) (int, error) {
	value := m.conf.Get(key)
	if value == "" {
		return fallback, nil
	}
	value = strings.TrimPrefix(value, "current=")
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%s: %q is no number above 0", key, value)
	}
	return n, nil
}

// checkMachine refuses what this host cannot run, with PVE's text.
func checkMachine(conf *state.Conf, bridge string) error {
	for n := range state.MaxNICs {
		if nic, ok := state.ParseNIC(conf.Get(fmt.Sprintf("net%d", n))); ok && nic.Bridge != "" && nic.Bridge != bridge {
			return fmt.Errorf("bridge '%s' does not exist", nic.Bridge)
		}
	}
	for _, slot := range driveSlots(conf) {
		if strings.HasPrefix(slot, "sata") {
			return fmt.Errorf("%s: the lab's machines have no SATA controller; use scsi", slot)
		}
	}
	return nil
}

// tapName is PVE's name for a VM's interface on the host.
func tapName(id, n int) string { return fmt.Sprintf("tap%di%d", id, n) }

// qmpName is the monitor socket's name. QEMU gets it and the agent's relative to the run directory,
// in which it is started: a full path may be longer than the 107 bytes a socket address holds.
const qmpName = "qmp"
