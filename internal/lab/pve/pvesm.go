package pve

import (
	"fmt"
	"strconv"
	"strings"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// pvesm is the storage tool: list, path, free.
func (c *call) pvesm(args []string) error {
	lowest := 100.0
	text, vmid := option{}, option{Type: "integer", Minimum: &lowest}
	known := map[string]*verb{
		"list": {positional: []string{"storage"}, options: map[string]option{"storage": text, "vmid": vmid, "content": text}, run: pvesmList},
		"path": {positional: []string{"volume"}, options: map[string]option{"volume": text}, run: pvesmPath},
		"free": {positional: []string{"volume"}, options: map[string]option{"volume": text}, run: pvesmFree},
	}
	if len(args) == 0 || known[args[0]] == nil {
		return unknownCommand("pvesm", args)
	}
	v := known[args[0]]
	v.name = "pvesm " + args[0]
	return c.play(v, args[1:])
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
