package pve

import "slices"

func vmid(name string) option { return whole(name, 100, 999999999) }

// driveKeys are the keys every disk bus knows; extra ones come with the bus.
func driveKeys(extra ...option) []option {
	return append([]option{
		text("file"), text("volume"), text("import-from"), text("size"), text("serial"),
		oneOf("aio", "native", "threads", "io_uring"),
		flag("backup"), flag("replicate"), flag("shared"), flag("snapshot"), flag("detect_zeroes"),
		oneOf("cache", "none", "writethrough", "writeback", "unsafe", "directsync"),
		oneOf("discard", "ignore", "on"),
		oneOf("format", "raw", "qcow2", "vmdk"),
		oneOf("media", "cdrom", "disk"),
		number("mbps", -1, 0), number("mbps_rd", -1, 0), number("mbps_wr", -1, 0),
		whole("iops", -1, 0), whole("iops_rd", -1, 0), whole("iops_wr", -1, 0),
	}, extra...)
}

func netKeys() []option {
	models := []string{"virtio", "e1000", "e1000e", "rtl8139", "vmxnet3"}
	keys := []option{
		oneOf("model", models...), text("macaddr"), text("bridge"),
		flag("firewall"), flag("link_down"), whole("mtu", 1, 65520), whole("queues", 0, 64),
		number("rate", 0, 0), whole("tag", 1, 4094), text("trunks"),
	}
	for _, model := range models {
		keys = append(keys, text(model))
	}
	return keys
}

// vmOptions describe a VM: create and set take them alike.
func vmOptions() []option {
	description := text("description")
	description.max = 8192
	return []option{
		props("agent", "enabled", flag("enabled"), flag("fstrim_cloned_disks"), oneOf("type", "virtio", "isa")),
		flag("acpi"), flag("autostart"), whole("balloon", 0, 0), oneOf("bios", "seabios", "ovmf"),
		props("boot", "legacy", text("legacy"), text("order")),
		props("cicustom", "", text("meta"), text("network"), text("user"), text("vendor")),
		text("cipassword"), oneOf("citype", "configdrive2", "nocloud", "opennebula"), flag("ciupgrade"), text("ciuser"),
		whole("cores", 1, 0),
		props("cpu", "cputype", text("cputype"), text("flags"), flag("hidden")),
		number("cpulimit", 0, 128), whole("cpuunits", 1, 262144),
		description,
		props("ide", "file", driveKeys(flag("ssd"), text("model"))...).indexed(3),
		props("ipconfig", "", text("gw"), text("gw6"), text("ip"), text("ip6")).indexed(31),
		flag("kvm"),
		oneOf("lock", "backup", "clone", "create", "migrate", "rollback", "snapshot", "snapshot-delete", "suspending", "suspended"),
		props("machine", "type", text("type")),
		props("memory", "current", whole("current", 16, 0)),
		checked("name", checkDNSName),
		checked("nameserver", checkAddresses),
		props("net", "model", netKeys()...).indexed(31),
		flag("numa"), flag("onboot"),
		oneOf("ostype", "other", "wxp", "w2k", "w2k3", "w2k8", "wvista", "win7", "win8", "win10", "win11", "l24", "l26", "solaris"),
		flag("protection"), flag("reboot"),
		props("rng0", "source", oneOf("source", "/dev/urandom", "/dev/random", "/dev/hwrng"), whole("max_bytes", -1, 0), whole("period", -1, 0)),
		props("sata", "file", driveKeys(flag("ssd"))...).indexed(5),
		props("scsi", "file", driveKeys(flag("iothread"), flag("ro"), flag("ssd"), whole("queues", 2, 0), text("product"), text("vendor"))...).indexed(30),
		oneOf("scsihw", "lsi", "lsi53c810", "virtio-scsi-pci", "virtio-scsi-single", "megasas", "pvscsi"),
		text("searchdomain"),
		matching("serial", `/dev/[^,]+|socket`).indexed(3),
		whole("sockets", 1, 0), text("sshkeys"), flag("tablet"),
		checked("tags", checkTags),
		props("vga", "type", whole("memory", 4, 512),
			oneOf("type", "cirrus", "qxl", "qxl2", "qxl3", "qxl4", "none", "serial0", "serial1", "serial2", "serial3", "std", "virtio", "virtio-gl", "vmware")),
		props("virtio", "file", driveKeys(flag("iothread"), flag("ro"))...).indexed(15),
		text("vmgenid"), vmid("vmid"),
	}
}

// verbs are the qm commands of the lab.
func verbs() []*verb {
	one := []string{"vmid"}
	only := []option{vmid("vmid")}
	with := func(options ...option) []option { return append([]option{vmid("vmid")}, options...) }
	diskResize := with(matching("disk", `(ide[0-3]|sata[0-5]|scsi([12]?[0-9]|30)|virtio([0-9]|1[0-5])|efidisk0)`),
		matching("size", `\+?\d+(\.\d+)?[KMGT]?`), flag("skiplock"))
	diskImport := with(text("source"), matching("storage", storageID), oneOf("format", "raw", "qcow2", "vmdk"))
	guestCmd := with(oneOf("command", "fsfreeze-freeze", "fsfreeze-status", "fsfreeze-thaw", "fstrim", "get-fsinfo",
		"get-host-name", "get-memory-block-info", "get-memory-blocks", "get-osinfo", "get-time", "get-timezone", "get-users",
		"get-vcpus", "info", "network-get-interfaces", "ping", "shutdown", "suspend-disk", "suspend-hybrid", "suspend-ram"))
	snapname := checked("snapname", checkConfigID)
	snapname.max = 40
	snapshot := snapname
	snapshot.name = "snapshot"
	snapshotOf := []string{"vmid", "snapname"}
	return []*verb{
		{name: "create", positional: one, run: qmCreate, options: slices.Concat(vmOptions(), []option{flag("start"), matching("storage", storageID), matching("pool", poolID)})},
		{name: "set", positional: one, run: qmSet, options: slices.Concat(vmOptions(), []option{checked("delete", checkConfigIDs), checked("revert", checkConfigIDs), flag("force"), flag("skiplock")})},
		{name: "clone", positional: []string{"vmid", "newid"}, run: qmClone, options: with(vmid("newid"), text("description"),
			oneOf("format", "raw", "qcow2", "vmdk"), flag("full"), checked("name", checkDNSName), matching("pool", poolID), snapname, matching("storage", storageID), matching("target", nodeName))},
		{name: "disk resize", positional: []string{"vmid", "disk", "size"}, run: qmResize, options: diskResize},
		{name: "resize", positional: []string{"vmid", "disk", "size"}, run: qmResize, options: diskResize},
		{name: "disk import", positional: []string{"vmid", "source", "storage"}, run: qmImport, options: diskImport},
		{name: "importdisk", positional: []string{"vmid", "source", "storage"}, run: qmImport, options: diskImport},
		{name: "template", positional: one, run: qmTemplate, options: only},
		{name: "config", positional: one, run: qmConfig, options: with(flag("current"), snapshot)},
		{name: "start", positional: one, run: qmStart, options: with(flag("skiplock"), whole("timeout", 0, 0))},
		{name: "stop", positional: one, run: qmStop, options: with(flag("skiplock"), flag("keepActive"), flag("overrule-shutdown"), whole("timeout", 0, 0))},
		{name: "shutdown", positional: one, run: qmShutdown, options: with(flag("forceStop"), flag("keepActive"), flag("skiplock"), whole("timeout", 0, 0))},
		{name: "suspend", positional: one, run: qmSuspend, options: with(flag("skiplock"), matching("statestorage", storageID), flag("todisk"))},
		{name: "resume", positional: one, run: qmResume, options: with(flag("nocheck"), flag("skiplock"))},
		{name: "reboot", positional: one, run: qmReboot, options: with(whole("timeout", 0, 0))},
		{name: "status", positional: one, run: qmStatus, options: with(flag("verbose"))},
		{name: "destroy", positional: one, run: qmDestroy, options: with(flag("destroy-unreferenced-disks"), flag("purge"), flag("skiplock"))},
		{name: "snapshot", positional: snapshotOf, run: qmSnapshot, options: with(snapname, text("description"), flag("vmstate"))},
		{name: "rollback", positional: snapshotOf, run: qmRollback, options: with(snapname)},
		{name: "delsnapshot", positional: snapshotOf, run: qmDelsnapshot, options: with(snapname, flag("force"))},
		{name: "listsnapshot", positional: one, run: qmListsnapshot, options: only},
		{name: "migrate", positional: []string{"vmid", "target"}, run: qmMigrate, options: with(matching("target", nodeName), flag("online"), flag("with-local-disks"))},
		{name: "list", run: qmList, options: []option{flag("full")}},
		{name: "unlock", positional: one, run: qmUnlock, options: only},
		{name: "guest exec", positional: one, extra: true, run: qmGuestExec, options: with(flag("pass-stdin"), flag("synchronous"), whole("timeout", 0, 0))},
		{name: "guest exec-status", positional: []string{"vmid", "pid"}, run: qmGuestExecStatus, options: with(whole("pid", -1, 0))},
		{name: "guest cmd", positional: []string{"vmid", "command"}, run: qmGuestCmd, options: guestCmd},
		{name: "agent", positional: []string{"vmid", "command"}, run: qmGuestCmd, options: guestCmd},
		{name: "cloudinit dump", positional: []string{"vmid", "type"}, run: qmCloudinitDump, options: with(oneOf("type", "user", "network", "meta"))},
	}
}
