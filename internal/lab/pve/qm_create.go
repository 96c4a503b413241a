package pve

import (
	"cmp"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // as Proxmox has it
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/crypto/ssh"

	"linus/internal/lab/state"
)

// qmCreate creates a VM. A config with `lock: create` takes the ID first; later failures free it.
func qmCreate(c *call) error {
	id := c.id()
	values, err := c.vmValues()
	if err != nil {
		return err
	}
	if err := c.s.Quorate(); err != nil {
		return err
	}
	started := false
	err = c.lockVM(id, func() error {
		reserved := state.NewConf()
		reserved.Set("lock", "create")
		if err := c.s.Reserve(c.ctx, id, reserved); err != nil {
			return err
		}
		conf := state.NewConf()
		conf.Set("vmgenid", uuid.NewString())
		conf.Set("smbios1", "uuid="+uuid.NewString())
		conf.Set("meta", fmt.Sprintf("creation-qemu=%s,ctime=%d", c.qemuVersion(), time.Now().Unix()))
		made, err := c.applyValues(id, conf, values)
		c.dieHalfWay()
		if err == nil {
			if order := defaultBoot(conf); !conf.Has("boot") && order != "" {
				conf.Set("boot", "order="+order)
			}
			err = c.s.WriteConf(id, conf)
		}
		if err != nil {
			return errors.Join(err, c.freeAll(made), os.Remove(c.s.ConfPath(id)))
		}
		started = c.on("start")
		return nil
	})
	if err != nil {
		return state.Fail(255, "unable to create VM %d - %s", id, err)
	}
	if started {
		return qmStart(c.child(map[string]string{"vmid": strconv.Itoa(id)}))
	}
	return nil
}

// dieHalfWay is the fault of a worker killed halfway, as happens when its output pipe breaks: its
// lock stays in the config, and its disks are left behind.
func (c *call) dieHalfWay() {
	if c.s.UseFault(state.FaultKilledWorker) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

// qmSet changes a VM. What a running VM cannot apply at once waits in the config's pending section.
func qmSet(c *call) error {
	id := c.id()
	values, err := c.vmValues()
	if err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, updateLine(id, values, c.opts["delete"]))
	return c.withVM(id, true, func(conf *state.Conf) error {
		if err := c.checkDigest(id); err != nil {
			return err
		}
		deleted := splitList(c.opts["delete"])
		dropped := slices.Contains(deleted, "vmstate") && conf.Get("lock") == lockSuspended
		if err := checkLock(conf, c.on("skiplock") || dropped); err != nil {
			return err
		}
		if dropped {
			conf.Delete("lock")
		}
		_, running := c.s.Pid(id)
		before := conf.Clone()
		for _, key := range deleted {
			if err := c.deleteKey(id, conf, key, running); err != nil {
				return err
			}
		}
		if running {
			values = deferValues(conf, values)
		}
		made, err := c.applyValues(id, conf, values)
		for key := range values {
			if running && (key == "name" || strings.HasPrefix(key, "net")) {
				conf.NoteDrive(key, before.Get(key), conf.Get(key))
			}
		}
		if err == nil && running {
			err = errors.Join(c.setLinks(state.VM{ID: id, Conf: conf}, before), c.setDisks(state.VM{ID: id, Conf: conf}, before))
		}
		if err == nil {
			err = c.s.WriteConf(id, conf)
		}
		if err != nil {
			return errors.Join(err, c.freeAll(made))
		}
		return nil
	})
}

// deferValues records as pending what takes effect only after a restart, and returns what can take
// effect now: the options that PVE calls fast-pluggable, hot-plugged disks, and changes of a
// network card that do not make it a different card.
func deferValues(conf *state.Conf, values map[string]string) map[string]string {
	now := map[string]string{}
	for key, value := range values {
		atOnce := slices.Contains([]string{"name", "description", "tags", "onboot", "protection", "lock", "startup", "hotplug"}, key)
		if atOnce || hotPlugged(conf, key) || (strings.HasPrefix(key, "net") && sameCard(conf.Get(key), value)) {
			now[key] = value
		} else {
			conf.SetPending(key, value)
		}
	}
	return now
}

// hotPlugged reports whether a drive's change takes effect at once in a running VM. Changes of a
// medium do, and so do those of a disk, except on IDE or SATA, or if hotplug is off for disks.
func hotPlugged(conf *state.Conf, key string) bool {
	kinds := cmp.Or(conf.Get("hotplug"), "1")
	switch {
	case !state.IsDrive(key):
		return false
	case state.ParseDrive(conf.Get(key)).CDROM():
		return true
	case strings.HasPrefix(key, "ide"), strings.HasPrefix(key, "sata"):
		return false
	}
	return kinds == "1" || slices.Contains(splitList(kinds), "disk")
}

func updateLine(id int, values map[string]string, deleted string) string {
	line := fmt.Sprintf("update VM %d:", id)
	if deleted != "" {
		line += " -delete " + deleted
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values[key]
		if key == "cipassword" {
			value = "<hidden>"
		}
		line += " -" + key + " " + value
	}
	return line
}

func (c *call) deleteKey(id int, conf *state.Conf, key string, running bool) error {
	if waits := conf.DropPendingKey(key); waits != "" && state.IsDrive(key) {
		addUnused(id, conf, state.ParseDrive(waits).File)
		if !conf.Has(key) {
			return nil
		}
	}
	if !conf.Has(key) {
		fmt.Fprintf(c.stderr, "cannot delete '%s' - not set in current configuration!\n", key)
		return nil
	}
	if order := conf.BootOrder(); slices.Contains(order, key) {
		boot := strings.Join(slices.DeleteFunc(order, func(of string) bool { return of == key }), ";")
		if boot != "" {
			boot = "order=" + boot
		}
		if running {
			conf.SetPending("boot", boot)
		} else {
			conf.Set("boot", boot)
		}
	}
	d := state.ParseDrive(conf.Get(key))
	switch {
	case key == "vmstate" && conf.Get("protection") == "1":
		return state.Fail(255, "can't remove vmstate '%s' - protection mode enabled", d.File)
	case strings.HasPrefix(key, "unused") && conf.Get("protection") == "1":
		return state.Fail(255, "can't remove unused disk '%s' - protection mode enabled", d.File)
	case state.IsDrive(key) && conf.Get("protection") == "1":
		return state.Fail(255, "can't remove drive '%s' - protection mode enabled", key)
	case key == "vmstate":
		conf.Delete(stateKeys...)
		return c.freeVolume(d.File)
	case strings.HasPrefix(key, "unused") && state.Owner(d.File) != id:
		conf.Delete(key)
	case strings.HasPrefix(key, "unused") || (state.IsDrive(key) && d.CloudInit()):
		conf.Delete(key)
		return c.freeVolume(d.File)
	case running && state.IsDrive(key) && !hotPlugged(conf, key):
		conf.DeletePending(key)
	case state.IsDrive(key) && !d.CDROM():
		conf.Delete(key)
		addUnused(id, conf, d.File)
	case running:
		conf.DeletePending(key)
	default:
		conf.Delete(key)
	}
	return nil
}

// addUnused keeps a volume that the VM owns in the config without attaching it.
func addUnused(id int, conf *state.Conf, volid string) {
	if state.Owner(volid) != id {
		return
	}
	for n := 0; ; n++ {
		key := "unused" + strconv.Itoa(n)
		if !conf.Has(key) {
			conf.Set(key, volid)
			return
		}
	}
}

// vmValues returns the call's options that go into a config, in the form PVE stores them.
func (c *call) vmValues() (map[string]string, error) {
	values := map[string]string{}
	for key, value := range c.opts {
		if !slices.Contains(strings.Fields("vmid start storage pool delete skiplock"), key) {
			values[key] = value
		}
	}
	if source, ok := values["sshkeys"]; ok {
		keys, err := c.readSSHKeys(source)
		if err != nil {
			return nil, err
		}
		values["sshkeys"] = keys
	}
	if tags, ok := values["tags"]; ok {
		list := splitList(strings.ToLower(tags))
		slices.Sort(list)
		values["tags"] = strings.Join(slices.Compact(list), ";")
	}
	return values, nil
}

// readSSHKeys reads the file of --sshkeys, on the node, and URL-encodes it as PVE stores it.
func (c *call) readSSHKeys(source string) (string, error) {
	var raw []byte
	var err error
	if source == "/dev/stdin" {
		raw, err = io.ReadAll(c.stdin)
	} else if raw, err = os.ReadFile(source); err != nil {
		return "", state.Fail(2, "can't open '%s' - No such file or directory", source)
	}
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if _, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line)); err != nil {
			return "", state.Fail(255, "SSH public key validation error")
		}
	}
	return strings.ReplaceAll(url.QueryEscape(string(raw)), "+", "%20"), nil
}

// applyValues writes options to a config, makes the disks they ask for and fills in MAC addresses.
// made has the new volumes, also on failure.
func (c *call) applyValues(id int, conf *state.Conf, values map[string]string) (made []string, err error) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values[key]
		switch {
		case state.IsDrive(key):
			if old := state.ParseDrive(conf.Get(key)); conf.Has(key) && !old.CDROM() {
				addUnused(id, conf, old.File)
			}
			var volid string
			value, volid, err = c.makeDrive(id, key, state.ParseDrive(value))
			if volid != "" {
				made = append(made, volid)
			}
			if err != nil {
				return made, err
			}
		case strings.HasPrefix(key, "net"):
			value = withMAC(value, false)
		}
		conf.Set(key, value)
	}
	return made, nil
}

// makeDrive turns `ST:0,import-from=FILE`, `ST:32`, `ST:cloudinit` or the name of a volume into a
// config line; volid is the new volume, or "".
func (c *call) makeDrive(id int, key string, d state.Drive) (line, volid string, err error) {
	name, what, ok := strings.Cut(d.File, ":")
	if d.File == "none" || d.File == "cdrom" {
		return d.String(), "", nil
	}
	if !ok {
		return "", "", state.Fail(255, "%s: invalid format - unable to parse volume ID '%s'", key, d.File)
	}
	st, err := c.s.Storage(name)
	if err != nil {
		return "", "", err
	}
	source := d.Props["import-from"]
	delete(d.Props, "import-from")
	gigabytes, sizeErr := strconv.ParseFloat(what, 64)
	switch {
	case what == "cloudinit":
		d.Props["media"] = "cdrom"
		delete(d.Props, "size")
		volid, err = c.allocCloudInit(st, id)
	case source != "" && gigabytes != 0:
		return "", "", state.Fail(255, "%s: 'import-from' requires special syntax - use <storage ID>:0,import-from=<source>", key)
	case source != "":
		volid, err = c.importVolume(st, id, source, d.Props["format"])
	case sizeErr == nil:
		volid, err = c.allocVolume(st, id, d.Props["format"], int64(gigabytes*(1<<30)))
	default:
		return c.attachDrive(d)
	}
	delete(d.Props, "format")
	if err != nil {
		return "", volid, err
	}
	d.File = volid
	if what != "cloudinit" {
		if err := c.setSize(&d); err != nil {
			return "", volid, err
		}
	}
	fmt.Fprintf(c.stdout, "%s: successfully created disk '%s'\n", key, d)
	return d.String(), volid, nil
}

func (c *call) attachDrive(d state.Drive) (line, volid string, err error) {
	path, err := c.s.VolumePath(d.File)
	if err != nil {
		return "", "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", "", state.Fail(255, "volume %s does not exist", d.File)
	}
	if !d.CDROM() {
		err = c.setSize(&d)
	}
	return d.String(), "", err
}

func (c *call) setSize(d *state.Drive) error {
	path, err := c.s.VolumePath(d.File)
	if err != nil {
		return err
	}
	size, err := c.drv.DiskSize(c.ctx, path)
	if err != nil {
		return err
	}
	d.Props["size"] = state.FormatSize(size)
	return nil
}

// withMAC gives a network card without an address one from Proxmox's range; with renew, it also
// replaces an existing address.
func withMAC(value string, renew bool) string {
	parts := strings.Split(value, ",")
	for i, part := range parts {
		model, _, given := strings.Cut(part, "=")
		if slices.Contains(state.NICModels, model) && (renew || !given) {
			parts[i] = model + "=" + newMAC()
		}
	}
	return strings.Join(parts, ",")
}

func newMAC() string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", b[0], b[1], b[2])
}

// defaultBoot is PVE's boot order: the first disk, the first CD drive, the first network card.
func defaultBoot(conf *state.Conf) string {
	var order []string
	for _, wantCD := range []bool{false, true} {
		for key, d := range state.Drives(conf.Values) {
			if d.CDROM() == wantCD {
				order = append(order, key)
				break
			}
		}
	}
	if conf.Has("net0") {
		order = append(order, "net0")
	}
	return strings.Join(order, ";")
}

// withVM calls f with a VM's config while it holds the lock of the config file. It refuses a config
// with a `lock:` line, unless skip is set.
func (c *call) withVM(id int, skip bool, f func(*state.Conf) error) error {
	return c.lockVM(id, func() error {
		conf, err := c.s.LoadConf(id)
		if err != nil {
			return err
		}
		if err := checkLock(conf, skip); err != nil {
			return err
		}
		return f(conf)
	})
}

// checkLock refuses to work on a VM with a `lock:` line.
func checkLock(conf *state.Conf, skip bool) error {
	if lock := conf.Get("lock"); lock != "" && !skip {
		return state.Fail(255, "VM is locked (%s)", lock)
	}
	return nil
}

func (c *call) qemuVersion() string {
	if c.s.Config.Version == "8.2" {
		return "8.1.5"
	}
	return "10.1.2"
}

// digest is what the API returns as a config's digest.
func digest(conf *state.Conf) string {
	return fmt.Sprintf("%x", sha1.Sum([]byte(conf.String()))) //nolint:gosec // as Proxmox has it
}

// checkDigest refuses a change that is based on a different version of the config.
func (c *call) checkDigest(id int) error {
	wanted := c.opts["digest"]
	if wanted == "" {
		return nil
	}
	raw, err := os.ReadFile(c.s.ConfPath(id))
	if err == nil && fmt.Sprintf("%x", sha1.Sum(raw)) != wanted { //nolint:gosec // as Proxmox has it
		text := "checksum mismatch (file change by other user?)"
		if c.s.Config.Version == "8.2" {
			text = "checksum missmatch (file change by other user?)"
		}
		err = state.Fail(255, "%s", text)
	}
	return err
}
