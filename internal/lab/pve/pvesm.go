package pve

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// pvesm is the storage tool: status, list, path, alloc, free.
func (c *call) pvesm(args []string) error {
	usage := state.Fail(255, "ERROR: no command specified\nUSAGE: pvesm <COMMAND> [ARGS] [OPTIONS]")
	if len(args) == 0 {
		return usage
	}
	st := []option{text("storage")}
	known := []*verb{
		{name: "status", options: append(st, text("content"), flag("enabled")), run: pvesmStatus},
		{name: "list", positional: []string{"storage"}, options: append(st, vmid("vmid"), text("content")), run: pvesmList},
		{name: "path", positional: []string{"volume"}, options: []option{text("volume")}, run: pvesmPath},
		{name: "free", positional: []string{"volume"}, options: []option{text("volume")}, run: pvesmFree},
		{
			name: "alloc", positional: []string{"storage", "vmid", "filename", "size"}, run: pvesmAlloc,
			options: append(st, vmid("vmid"), text("filename"), text("size"), oneOf("format", "raw", "qcow2", "subvol", "vmdk")),
		},
	}
	i := slices.IndexFunc(known, func(v *verb) bool { return v.name == args[0] })
	if i < 0 {
		return state.Fail(255, "ERROR: unknown command 'pvesm %s'\nUSAGE: pvesm <COMMAND> [ARGS] [OPTIONS]", args[0])
	}
	var err error
	if c.opts, _, err = known[i].parse(args[1:], c.stderr); err != nil {
		return err
	}
	return known[i].run(c)
}

func pvesmStatus(c *call) error {
	if name := c.opts["storage"]; name != "" {
		if _, err := c.s.Storage(name); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.stdout, "%-12s %10s %10s %15s %15s %15s %8s\n", "Name", "Type", "Status", "Total", "Used", "Available", "%")
	for _, st := range c.s.Storages() {
		content := c.opts["content"]
		if name := c.opts["storage"]; (name != "" && name != st.Name) ||
			(content != "" && !slices.Contains(strings.Split(st.Content, ","), content)) {
			continue
		}
		status := c.storageStatus(st)
		used, _ := status["used"].(int64)
		fmt.Fprintf(c.stdout, "%-12s %10s %10s %15d %15d %15d %7.2f%%\n", st.Name, st.Kind, "active",
			storageTotal/1024, used/1024, (storageTotal-used)/1024, float64(used)*100/float64(storageTotal))
	}
	return nil
}

func pvesmList(c *call) error {
	st, err := c.s.Storage(c.opts["storage"])
	if err != nil {
		return err
	}
	owner, _ := strconv.Atoi(c.opts["vmid"])
	list := c.s.Volumes(st, owner)
	width := len("Volid")
	for _, v := range list {
		width = max(width, len(v.VolID))
	}
	fmt.Fprintf(c.stdout, "%-*s %-7s %-9s %14s %s\n", width, "Volid", "Format", "Type", "Size", "VMID")
	for _, v := range list {
		fmt.Fprintf(c.stdout, "%-*s %-7s %-9s %14d %d\n", width, v.VolID, v.Format, "images", c.volumeSize(v), v.Owner)
	}
	return nil
}

// volumeSize is a volume's size as the guest sees it.
func (c *call) volumeSize(v state.Volume) int64 {
	if strings.Contains(v.VolID, "-cloudinit") {
		return sys.FileSize(v.Path)
	}
	size, err := c.drv.DiskSize(c.ctx, v.Path)
	if err != nil {
		return sys.FileSize(v.Path)
	}
	return size
}

func pvesmPath(c *call) error {
	path, err := c.s.VolumePath(c.opts["volume"])
	if err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, path)
	return nil
}

func pvesmFree(c *call) error {
	volid := c.opts["volume"]
	if c.s.UsedBy(volid) {
		return state.Fail(255, "base volume '%s' is still in use by linked cloned", volid)
	}
	if err := c.freeVolume(volid); err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "Removed volume '%s'\n", volid)
	return nil
}

// pvesmAlloc creates a volume of a given name; its size is in KiB without a unit.
func pvesmAlloc(c *call) error {
	st, err := c.s.Storage(c.opts["storage"])
	if err != nil {
		return err
	}
	size := c.opts["size"]
	if _, err := strconv.ParseInt(size, 10, 64); err == nil {
		size += "K"
	}
	bytes, err := state.ParseSize(size)
	if err != nil {
		return state.Fail(255, "400 Parameter verification failed.\nsize: value does not match the regex pattern")
	}
	id, name := c.id(), c.opts["filename"]
	stem := strings.TrimSuffix(name, filepath.Ext(name))
	m := state.VolumePattern.FindStringSubmatch(stem)
	if name != "" && (m == nil || m[2] != strconv.Itoa(id)) {
		return state.Fail(255, "illegal name '%s' - should be 'vm-%d-*'", name, id)
	}
	format := diskFormatFor(st, c.opts["format"])
	var volid string
	err = c.lockStorage(st, func() error {
		if name == "" {
			if volid, err = c.s.NewVolume(st, id, format); err != nil {
				return err
			}
		} else {
			volid = st.VolID(id, stem, format)
			if c.s.VolumeExists(st, id, stem) {
				return state.Fail(255, "disk image '%s' already exists", name)
			}
		}
		return c.makeFile(st, id, volid, func(path string) error { return c.drv.CreateDisk(c.ctx, path, format, bytes) })
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.stdout, "successfully created '%s'\n", volid)
	return nil
}
