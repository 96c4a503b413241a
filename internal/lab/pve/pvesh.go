package pve

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// pvesh returns the API paths our scripts read. It only reads: what changes
// VMs goes through qm.
func (c *call) pvesh(args []string) error {
	if len(args) < 2 {
		return state.Fail(255, "ERROR: no command specified\nUSAGE: pvesh <COMMAND> [ARGS] [OPTIONS]")
	}
	method, path := args[0], "/"+strings.Trim(args[1], "/")
	noHandler := state.Fail(1, "No '%s' handler defined for '%s'", method, path)
	if method != "get" {
		return noHandler
	}
	params, err := apiParams(args[2:])
	if err != nil {
		return err
	}
	c.opts = params
	for _, route := range routes() {
		vars, ok := matchPath(route.pattern, path)
		if !ok {
			continue
		}
		if err := c.checkNode(vars["node"]); err != nil {
			return err
		}
		result, err := route.handle(c, vars)
		if err != nil {
			return err
		}
		return c.printAPI(params["output-format"], result)
	}
	return noHandler
}

func apiParams(args []string) (map[string]string, error) {
	params := map[string]string{}
	for i := 0; i < len(args); i++ {
		name, value, inline := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		switch {
		case !strings.HasPrefix(args[i], "-"):
			return nil, state.Fail(255, "400 too many arguments\npvesh get <api_path> [OPTIONS] [FORMAT_OPTIONS]")
		case inline:
		case i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"):
			i++
			value = args[i]
		default:
			value = "1"
		}
		params[name] = value
	}
	return params, nil
}

func (c *call) printAPI(format string, result any) error {
	switch format {
	case "json":
		return printCompact(c.stdout, result)
	case "json-pretty":
		return printPretty(c.stdout, result)
	}
	return printTable(c.stdout, result)
}

// checkNode refuses a node nobody knows and one that does not answer.
func (c *call) checkNode(name string) error {
	if name == "" {
		return nil
	}
	for _, n := range c.s.Nodes() {
		if n.Name == name && n.Online {
			return nil
		}
		if n.Name == name {
			return state.Fail(255, "595 Errors during connection establishment, proxy handshake: No route to host")
		}
	}
	return state.Fail(255, "hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
}

type route struct {
	pattern string // parts in braces are variables
	handle  func(c *call, vars map[string]string) (any, error)
}

func matchPath(pattern, path string) (map[string]string, bool) {
	want, have := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(have) {
		return nil, false
	}
	vars := map[string]string{}
	for i, part := range want {
		switch {
		case strings.HasPrefix(part, "{"):
			vars[strings.Trim(part, "{}")] = have[i]
		case part != have[i]:
			return nil, false
		}
	}
	return vars, true
}

func routes() []route {
	return []route{
		{"/version", apiVersion},
		{"/cluster/nextid", apiNextID},
		{"/cluster/resources", apiResources},
		{"/cluster/status", apiClusterStatus},
		{"/nodes", apiNodes},
		{"/nodes/{node}/status", apiNodeStatus},
		{"/nodes/{node}/network", apiNetwork},
		{"/nodes/{node}/storage", apiStorages},
		{"/nodes/{node}/storage/{storage}/status", apiStorageStatus},
		{"/nodes/{node}/storage/{storage}/content", apiContent},
		{"/nodes/{node}/qemu", apiVMs},
		{"/nodes/{node}/qemu/{vmid}/config", apiVMConfig},
		{"/nodes/{node}/qemu/{vmid}/snapshot", apiSnapshots},
		{"/nodes/{node}/qemu/{vmid}/feature", apiFeature},
		{"/nodes/{node}/qemu/{vmid}/status/current", apiVMStatus},
		{"/nodes/{node}/qemu/{vmid}/agent/file-read", apiFileRead},
		{"/nodes/{node}/qemu/{vmid}/agent/exec-status", apiExecStatus},
		{"/nodes/{node}/qemu/{vmid}/agent/{command}", apiAgent},
		{"/nodes/{node}/lxc", apiContainers},
		{"/nodes/{node}/tasks", apiTasks},
		{"/storage", apiStorageDefinitions},
		{"/storage/{storage}", apiStorageDefinition},
	}
}

func apiVersion(c *call, _ map[string]string) (any, error) {
	release, version, repo := "9.2", "9.2.2", "3a1fb5d6e0b1c7a4"
	if c.s.Config.Version == "8.2" {
		release, version, repo = "8.2", "8.2.2", "9355359cd7afbae4"
	}
	return map[string]any{"release": release, "version": version, "repoid": repo}, nil
}

func apiNextID(c *call, _ map[string]string) (any, error) {
	asked, given := c.opts["vmid"]
	if !given {
		return strconv.Itoa(c.s.NextID()), nil
	}
	id, err := strconv.Atoi(asked)
	if err != nil || id < 100 {
		return nil, state.Fail(255, "400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID")
	}
	if _, _, taken := c.s.Holder(id); taken { // it says VM of a container too
		return nil, state.Fail(255, "400 Parameter verification failed.\nvmid: VM %d already exists", id)
	}
	return asked, nil
}

// vmsOf are the VMs of a node as the API lists them.
func (c *call) vmsOf(name string) []map[string]any {
	list := []map[string]any{}
	for _, id := range c.s.IDsOf(name, "qemu-server") {
		conf, err := c.confOf(name, id)
		if err != nil {
			continue // destroyed since it was listed
		}
		list = append(list, c.vmStatus(id, conf))
	}
	return list
}

func apiVMs(c *call, vars map[string]string) (any, error) { return c.vmsOf(vars["node"]), nil }

func apiContainers(c *call, vars map[string]string) (any, error) {
	list := []map[string]any{}
	for _, id := range c.s.IDsOf(vars["node"], "lxc") {
		list = append(list, map[string]any{"vmid": id, "name": fmt.Sprintf("ct%d", id), "status": "stopped", "type": "lxc"})
	}
	return list, nil
}

func apiResources(c *call, _ map[string]string) (any, error) {
	kind := c.opts["type"]
	if kind != "" && !slices.Contains([]string{"vm", "storage", "node", "sdn"}, kind) {
		return nil, state.Fail(255, "400 Parameter verification failed.\ntype: value '%s' does not have a value in the enumeration 'vm, storage, node, sdn'", kind)
	}
	list := []map[string]any{}
	for _, n := range c.s.Nodes() {
		if kind == "" || kind == "vm" {
			for _, vm := range c.vmsOf(n.Name) {
				list = append(list, resource("qemu", n, vm))
			}
			for _, id := range c.s.IDsOf(n.Name, "lxc") {
				list = append(list, resource("lxc", n, map[string]any{"vmid": id, "name": fmt.Sprintf("ct%d", id), "status": "stopped"}))
			}
		}
		if kind == "" || kind == "node" {
			entry := nodeEntry(n)
			entry["type"] = "node"
			list = append(list, entry)
		}
		if kind == "" || kind == "storage" {
			for _, st := range c.s.Storages() {
				list = append(list, map[string]any{
					"id": "storage/" + n.Name + "/" + st.Name, "type": "storage", "node": n.Name, "storage": st.Name,
					"status": "available", "plugintype": st.Kind, "content": st.Content, "shared": 0,
				})
			}
		}
	}
	return list, nil
}

// resource is a VM or container as /cluster/resources shows it.
func resource(kind string, n state.Node, vm map[string]any) map[string]any {
	entry := map[string]any{"type": kind, "node": n.Name, "id": fmt.Sprintf("%s/%v", kind, vm["vmid"]), "template": 0, "maxcpu": vm["cpus"]}
	for _, key := range []string{"vmid", "name", "status", "template", "tags", "lock", "maxmem", "maxdisk", "cpu", "mem", "disk", "uptime"} {
		if value, ok := vm[key]; ok {
			entry[key] = value
		}
	}
	if !n.Online {
		entry["status"] = "unknown"
	}
	return entry
}

func apiNodes(c *call, _ map[string]string) (any, error) {
	list := []map[string]any{}
	for _, n := range c.s.Nodes() {
		entry := nodeEntry(n)
		entry["type"] = "node"
		list = append(list, entry)
	}
	return list, nil
}

func nodeEntry(n state.Node) map[string]any {
	entry := map[string]any{"node": n.Name, "id": "node/" + n.Name, "status": "offline"}
	if n.Online {
		entry["status"] = "online"
		entry["cpu"], entry["maxcpu"] = 0.1, 8
		entry["mem"], entry["maxmem"] = int64(4)<<30, int64(32)<<30
		entry["uptime"] = 86400
	}
	return entry
}

func apiClusterStatus(c *call, _ map[string]string) (any, error) {
	nodes := c.s.Nodes()
	list := []map[string]any{}
	if len(nodes) > 1 {
		quorate := 1
		if c.s.Fault(state.FaultNoQuorum) != "" {
			quorate = 0
		}
		list = append(list, map[string]any{"type": "cluster", "id": "cluster", "name": "lab", "nodes": len(nodes), "quorate": quorate, "version": len(nodes)})
	}
	for i, n := range nodes {
		entry := map[string]any{"type": "node", "id": "node/" + n.Name, "name": n.Name, "nodeid": i + 1, "online": 0, "local": 0, "level": "", "ip": state.OtherNodeIP}
		if n.Online {
			entry["online"] = 1
		}
		if i == 0 {
			entry["local"], entry["ip"] = 1, "127.0.0.1"
		}
		list = append(list, entry)
	}
	return list, nil
}

// apiNodeStatus has no `status` key, like the real one.
func apiNodeStatus(c *call, _ map[string]string) (any, error) {
	version, _ := apiVersion(c, nil)
	numbers := version.(map[string]any)
	return map[string]any{
		"cpu": 0.1, "uptime": 86400, "wait": 0, "idle": 0,
		"loadavg":        []any{"0.10", "0.08", "0.05"},
		"memory":         map[string]any{"total": int64(32) << 30, "used": int64(4) << 30, "free": int64(28) << 30},
		"rootfs":         map[string]any{"total": int64(94) << 30, "used": int64(14) << 30, "free": int64(80) << 30, "avail": int64(80) << 30},
		"cpuinfo":        map[string]any{"cpus": 8, "cores": 8, "sockets": 1, "model": "lab"},
		"pveversion":     fmt.Sprintf("pve-manager/%s/%s", numbers["version"], numbers["repoid"]),
		"kversion":       "Linux",
		"ksm":            map[string]any{"shared": 0},
		"current-kernel": map[string]any{"sysname": "Linux", "machine": "x86_64"},
	}, nil
}

func apiNetwork(c *call, _ map[string]string) (any, error) {
	list := []map[string]any{{"iface": "eno1", "type": "eth", "active": 1, "exists": 1, "method": "manual", "priority": 3}}
	if c.bridgeExists(c.s.Config.Bridge) {
		list = append(list, map[string]any{
			"iface": c.s.Config.Bridge, "type": "bridge", "active": 1, "autostart": 1, "method": "static",
			"bridge_ports": "eno1", "bridge_stp": "off", "bridge_fd": "0", "priority": 4,
		})
	}
	if kind := c.opts["type"]; kind != "" {
		list = slices.DeleteFunc(list, func(n map[string]any) bool {
			return n["type"] != kind && kind != "any_bridge" && kind != "any_local_bridge"
		})
	}
	return list, nil
}

const storageTotal = int64(100) << 30

func (c *call) storageStatus(st state.Storage) map[string]any {
	used := int64(0)
	for _, v := range c.s.Volumes(st, 0) {
		used += sys.FileSize(v.Path)
	}
	return map[string]any{
		"type": st.Kind, "content": st.Content, "active": 1, "enabled": 1, "shared": 0,
		"total": storageTotal, "used": used, "avail": storageTotal - used,
	}
}

func apiStorages(c *call, _ map[string]string) (any, error) {
	list := []map[string]any{}
	for _, st := range c.s.Storages() {
		entry := c.storageStatus(st)
		entry["storage"] = st.Name
		if content := c.opts["content"]; content == "" || slices.Contains(strings.Split(st.Content, ","), content) {
			list = append(list, entry)
		}
	}
	return list, nil
}

func apiStorageStatus(c *call, vars map[string]string) (any, error) {
	st, err := c.s.Storage(vars["storage"])
	if err != nil {
		return nil, err
	}
	return c.storageStatus(st), nil
}

func apiContent(c *call, vars map[string]string) (any, error) {
	st, err := c.s.Storage(vars["storage"])
	if err != nil {
		return nil, err
	}
	owner, _ := strconv.Atoi(c.opts["vmid"])
	list := []map[string]any{}
	for _, v := range c.s.Volumes(st, owner) {
		list = append(list, map[string]any{"volid": v.VolID, "format": v.Format, "content": "images", "vmid": v.Owner, "size": c.volumeSize(v)})
	}
	return list, nil
}

func storageDefinition(st state.Storage) map[string]any {
	entry := map[string]any{"storage": st.Name, "type": st.Kind, "content": st.Content}
	if st.Thin() {
		entry["thinpool"], entry["vgname"] = "data", "pve"
	} else {
		entry["path"] = "/var/lib/vz"
	}
	return entry
}

func apiStorageDefinitions(c *call, _ map[string]string) (any, error) {
	list := []map[string]any{}
	for _, st := range c.s.Storages() {
		list = append(list, storageDefinition(st))
	}
	return list, nil
}

func apiStorageDefinition(c *call, vars map[string]string) (any, error) {
	st, err := c.s.Storage(vars["storage"])
	if err != nil {
		return nil, err
	}
	entry := storageDefinition(st)
	entry["digest"] = digest(state.NewConf())
	return entry, nil
}
