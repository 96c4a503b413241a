package pve

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"linus/internal/lab/state"
)

// qmMigrate moves a VM to another node of the cluster. It moves local disks if the VM is stopped or
// with --with-local-disks, and a running VM with --online.
func qmMigrate(c *call) error {
	id, target := c.id(), c.opts["target"]
	if target == c.s.Config.Node {
		return state.Fail(255, "400 Parameter verification failed.\ntarget: target is local node.")
	}
	if err := c.s.Quorate(); err != nil {
		return err
	}
	if err := c.checkMember(target); err != nil {
		return err
	}
	conf, err := c.s.LoadConf(id)
	if err != nil {
		return err
	}
	if err := checkLock(conf, false); err != nil {
		return err
	}
	_, running := c.s.Pid(id)
	switch {
	case running && !c.on("online"):
		return state.Fail(255, "can't migrate running VM without --online")
	case !running && c.on("online"):
		fmt.Fprintln(c.stderr, "VM isn't running. Doing offline migration instead.")
	}
	to, m, ok := c.s.Member(target)
	if !ok {
		return state.Fail(255, "node '%s' is no lab: nothing can move there", target)
	}
	started := time.Now()
	if err := c.withVM(id, false, func(conf *state.Conf) error { return c.migrate(id, conf, to, m) }); err != nil {
		c.migrationLog("ERROR: migration aborted (duration %s): %s", duration(started), err)
		return state.Fail(255, "migration aborted")
	}
	c.migrationLog("migration finished successfully (duration %s)", duration(started))
	return nil
}

func duration(since time.Time) string {
	seconds := int(time.Since(since).Seconds())
	return fmt.Sprintf("%02d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
}

func (c *call) migrationLog(format string, args ...any) {
	for line := range strings.Lines(fmt.Sprintf(format, args...)) {
		fmt.Fprintf(c.stdout, "%s %s\n", time.Now().Format(time.DateTime), strings.TrimSuffix(line, "\n"))
	}
}

// migrate moves a VM. The caller holds the VM's lock.
func (c *call) migrate(id int, conf *state.Conf, to *state.State, m state.Member) error {
	if !m.Down.IsZero() {
		c.migrationLog("# %s /bin/true\nssh: connect to host %s port 22: No route to host", sshCommand(m), m.IP)
		return errors.New("Can't connect to destination address using public key") //nolint:revive,staticcheck // Proxmox's text
	}
	if to.Quorate() != nil {
		return errors.New("remote command failed with exit code 255")
	}
	_, running := c.s.Pid(id)
	c.migrationLog("starting migration of VM %d to node '%s' (%s)", id, m.Name, m.IP)
	conf.Set("lock", "migrate")
	if err := c.s.WriteConf(id, conf); err != nil {
		return err
	}
	local, err := c.localDisks(conf, running)
	if err == nil {
		err = c.moveDisks(id, conf, local, to)
	}
	if err == nil {
		err = c.s.WriteConf(id, conf)
	}
	if err != nil {
		c.migrationLog("ERROR: %s\naborting phase 1 - cleanup resources", err)
		conf.Delete("lock")
		return errors.Join(err, c.s.WriteConf(id, conf))
	}
	if err := os.Rename(c.s.ConfPath(id), c.s.ConfPathOn(m.Name, id)); err != nil {
		return err
	}
	if running {
		c.migrationLog("starting VM %d on remote node '%s'", id, m.Name)
		if err := c.drv.Move(c.ctx, c.s, to, state.VM{ID: id, Conf: conf}); err != nil {
			return err
		}
		c.migrationLog("migration completed")
	}
	conf.Delete("lock")
	return to.WriteConf(id, conf)
}

// localDisks returns the keys of a config's disks on storages of this node only.
func (c *call) localDisks(conf *state.Conf, running bool) ([]string, error) {
	var keys []string
	abort := false
	for _, key := range conf.Keys() {
		d := state.ParseDrive(conf.Get(key))
		name, volume, named := strings.Cut(d.File, ":")
		if !named || !state.IsDrive(key) && !strings.HasPrefix(key, "unused") {
			continue
		}
		st, err := c.s.Storage(name)
		if err != nil {
			return nil, fmt.Errorf("Problem found while scanning volumes - %w", err) //nolint:revive,staticcheck // Proxmox's text
		}
		if st.Shared {
			continue
		}
		wrong := ""
		base, _, linked := strings.Cut(volume, "/vm-") // 9000/base-9000-disk-0.qcow2/100
		switch {
		case d.CloudInit():
			c.migrationLog("found generated disk '%s' (in current VM config)", d.File)
		case d.CDROM():
			wrong = "local cdrom image"
		case state.Owner(d.File) != c.id():
			wrong = fmt.Sprintf("owned by other VM (owner = VM %d)", state.Owner(d.File))
		case linked && strings.Contains(base, "base-"):
			return nil, fmt.Errorf("Problem found while scanning volumes - can't migrate '%s' as it's a clone of '%s'", d.File, strings.Split(base, "/")[1]) //nolint:revive,staticcheck // Proxmox's text
		case running && !c.on("with-local-disks"):
			wrong = "can't live migrate attached local disks without with-local-disks option"
		case len(conf.Snapshots) > 0: // real snapshots in a qcow2 file move with it
			wrong = "non-migratable snapshot exists"
		case c.s.UsedBy(d.File):
			wrong = "referenced by linked clone(s)"
		default:
			c.migrationLog("found local disk '%s' (attached)", d.File)
		}
		if wrong != "" {
			c.migrationLog("can't migrate local disk '%s': %s", d.File, wrong)
			abort = true
		}
		keys = append(keys, key)
	}
	if abort {
		return nil, errors.New("Problem found while scanning volumes - can't migrate VM - check log") //nolint:revive,staticcheck // Proxmox's text
	}
	return keys, nil
}

// moveDisks moves disks to the storages of the same name on the other node. A disk whose name is
// taken there gets another one.
func (c *call) moveDisks(id int, conf *state.Conf, keys []string, to *state.State) error {
	if len(keys) > 0 {
		c.migrationLog("copying local disk images")
	}
	for _, key := range keys {
		d := state.ParseDrive(conf.Get(key))
		moved, err := c.moveDisk(id, d.File, to)
		if err != nil {
			return err
		}
		c.migrationLog("volume '%s' is '%s' on the target", d.File, moved)
		if d.File = moved; state.IsDrive(key) {
			conf.Set(key, d.String())
		} else {
			conf.Set(key, moved)
		}
	}
	return nil
}

func (c *call) moveDisk(id int, volid string, to *state.State) (string, error) {
	name, volume, _ := strings.Cut(volid, ":")
	st, err := to.Storage(name)
	if err != nil {
		return "", err
	}
	src, err := c.s.VolumePath(volid)
	if err != nil {
		return "", err
	}
	file := volume[strings.LastIndex(volume, "/")+1:]
	stem, format, _ := strings.Cut(file, ".")
	if to.VolumeExists(st, id, stem) {
		if volid, err = to.NewVolume(st, id, format); err != nil {
			return "", err
		}
	}
	dst, err := to.VolumePath(volid)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(st.VolumeDir(id), 0o755); err != nil {
		return "", err
	}
	if err := c.drv.RenameDisk(src, dst); err != nil {
		return "", err
	}
	if !st.Thin() {
		_ = os.Remove(filepath.Dir(src)) // removes the VM's directory once it is empty
	}
	return volid, nil
}
