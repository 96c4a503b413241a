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
		at, err := c.proxied(vars["node"], path)
		if err != nil {
			return err
		}
		result, err := route.handle(at, vars)
		if err != nil {
			return at.proxyError(err, path)
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

// apiNodeStatus has no `status` key, like the real one.
func apiNodeStatus(c *call, _ map[string]string) (any, error) {
	version, _ := apiVersion(c, nil)
	numbers := version.(map[string]any)
	memory, used, cpus := c.memory()
	return map[string]any{
		"cpu": 0.1, "uptime": 86400, "wait": 0, "idle": 0,
		"loadavg":        []any{"0.10", "0.08", "0.05"},
		"memory":         map[string]any{"total": memory, "used": used, "free": memory - used},
		"rootfs":         map[string]any{"total": int64(94) << 30, "used": int64(14) << 30, "free": int64(80) << 30, "avail": int64(80) << 30},
		"cpuinfo":        map[string]any{"cpus": cpus, "cores": cpus, "sockets": 1, "model": "lab"},
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
		"type": st.Kind, "content": st.Content, "active": 1, "enabled": 1, "shared": number01(st.Shared),
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
	switch {
	case st.Thin():
		entry["thinpool"], entry["vgname"] = "data", "pve"
	case st.Shared:
		entry["path"], entry["server"], entry["export"], entry["shared"] = "/mnt/pve/"+st.Name, "192.0.2.10", "/srv/"+st.Name, 1
	default:
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
