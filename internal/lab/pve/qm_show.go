package pve

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// vmStatus is what the API returns for a VM, with the API's keys.
func (c *call) vmStatus(id int, conf *state.Conf) map[string]any {
	pid, running := c.s.Pid(id)
	name := cmp.Or(conf.Get("name"), "VM "+strconv.Itoa(id))
	status := map[string]any{
		"vmid": id, "name": name, "status": "stopped", "qmpstatus": "stopped",
		"maxmem": memoryBytes(conf), "maxdisk": c.bootDiskSize(conf), "cpus": cpus(conf),
		"cpu": 0, "mem": 0, "disk": 0, "uptime": 0, "netin": 0, "netout": 0, "diskread": 0, "diskwrite": 0,
	}
	if running {
		status["status"], status["qmpstatus"] = "running", "running"
		status["pid"] = pid
		status["mem"] = sys.ResidentBytes(pid)
		status["uptime"] = c.uptimeSeconds(id)
	}
	if conf.IsTemplate() {
		status["template"] = 1
	}
	for _, key := range []string{"tags", "lock"} {
		if conf.Has(key) {
			status[key] = conf.Get(key)
		}
	}
	return status
}

// askMonitor adds to a status what only the machine itself knows.
func (c *call) askMonitor(vm state.VM, status map[string]any) {
	if status["status"] == "running" && c.drv.Paused(c.ctx, c.s, vm) {
		status["qmpstatus"] = "paused"
	}
}

func (c *call) bootDiskSize(conf *state.Conf) int64 {
	key, _ := conf.BootDisk()
	size, err := state.ParseSize(state.ParseDrive(conf.Get(key)).Props["size"])
	if err != nil {
		return 0
	}
	return size
}

func memoryBytes(conf *state.Conf) int64 {
	p := state.Props(conf.Get("memory"))
	mib, err := strconv.ParseInt(cmp.Or(p["current"], p[""]), 10, 64)
	if err != nil {
		mib = 512
	}
	return mib << 20
}

func cpus(c *state.Conf) int {
	count := 1
	for _, key := range []string{"sockets", "cores"} {
		if n, err := strconv.Atoi(c.Get(key)); err == nil {
			count *= n
		}
	}
	return count
}

// startedAt is when the VM started: the time of its pid file.
func (c *call) startedAt(id int) time.Time {
	info, err := os.Stat(filepath.Join(c.s.RunDir(id), "pid"))
	if err != nil {
		return time.Now()
	}
	return info.ModTime()
}

func (c *call) uptimeSeconds(id int) int { return int(time.Since(c.startedAt(id)).Seconds()) }

func qmStatus(c *call) error {
	conf, err := c.s.LoadConf(c.id())
	if err != nil {
		return err
	}
	status := c.vmStatus(c.id(), conf)
	if !c.on("verbose") {
		fmt.Fprintf(c.stdout, "status: %s\n", status["status"])
		return nil
	}
	c.askMonitor(state.VM{ID: c.id(), Conf: conf}, status)
	for _, key := range slices.Sorted(maps.Keys(status)) {
		fmt.Fprintf(c.stdout, "%s: %v\n", key, status[key])
	}
	return nil
}

func qmList(c *call) error {
	said := false
	for id, conf := range c.s.ConfsOf(c.s.Config.Node) {
		if !said {
			said = true
			fmt.Fprintf(c.stdout, "%10s %-20s %-10s %-10s %12s %-10s\n", "VMID", "NAME", "STATUS", "MEM(MB)", "BOOTDISK(GB)", "PID")
		}
		status := c.vmStatus(id, conf)
		pid, _ := status["pid"].(int)
		fmt.Fprintf(c.stdout, "%10d %-20s %-10s %-10d %12.2f %-10d\n", id, status["name"], status["status"],
			memoryBytes(conf)>>20, float64(c.bootDiskSize(conf))/(1<<30), pid)
	}
	if c.s.Config.Driver == state.DriverProcess {
		fmt.Fprintln(c.stderr, "(a process lab: its VMs are processes of this machine and isolate nothing)")
	}
	return nil
}

// qmConfig prints a config, or a snapshot's with --snapshot, sorted, with pending values applied
// unless --current. It verifies the result, and the schema does not know the lock of a destroy.
func qmConfig(c *call) error {
	conf, err := c.s.LoadConf(c.id())
	if err != nil {
		return err
	}
	if name, given := c.opts["snapshot"]; given {
		snapshot, there := conf.Snapshots[name]
		if !there {
			return state.Fail(255, "snapshot '%s' does not exist", name)
		}
		conf = &state.Conf{Values: snapshot}
	}
	if conf.Get("lock") == lockDestroyed {
		return state.Fail(255, "400 Result verification failed\nlock: value '%s' does not have a value in the enumeration '%s'", lockDestroyed,
			"backup, clone, create, migrate, rollback, snapshot, snapshot-delete, suspending, suspended")
	}
	values := c.shownConf(conf)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		value := values[key]
		if key == "description" {
			value = state.EncodeText(value)
		}
		fmt.Fprintf(c.stdout, "%s: %s\n", key, value)
	}
	return nil
}

// shownConf is a config as the API shows it, with passwords hidden.
func (c *call) shownConf(conf *state.Conf) map[string]string {
	shown := conf.Clone()
	if !c.on("current") {
		shown.ApplyPending()
	}
	if shown.Has("cipassword") {
		shown.Set("cipassword", "**********")
	}
	return shown.Values
}
