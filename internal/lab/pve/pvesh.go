package pve

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// pvesh serves the API paths that linus's scripts read. It only reads: qm makes the changes.
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
	if params["output-format"] != "json" {
		return state.Fail(255, "the lab's pvesh prints JSON only: give it --output-format json")
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
		return printJSON(c.stdout, result, "")
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
		{"/cluster/resources", apiResources},
		{"/nodes", apiNodes},
		{"/storage", apiStorageConfig},
		{"/nodes/{node}/network", apiNetwork},
		{"/nodes/{node}/storage", apiStorages},
		{"/nodes/{node}/storage/{storage}/status", apiStorageStatus},
		{"/nodes/{node}/qemu", apiVMs},
		{"/nodes/{node}/qemu/{vmid}/snapshot", apiSnapshots},
		{"/nodes/{node}/qemu/{vmid}/feature", apiFeature},
		{"/nodes/{node}/tasks", apiTasks},
	}
}

// vmOf returns the VM that an API path names.
func (c *call) vmOf(vars map[string]string) (int, *state.Conf, error) {
	id, err := strconv.Atoi(vars["vmid"])
	if err != nil {
		return 0, nil, state.Fail(255, "400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID")
	}
	conf, err := c.s.LoadConfOf(vars["node"], id)
	return id, conf, err
}

// vmsOf returns the VMs of a node as the API lists them.
func (c *call) vmsOf(name string) []map[string]any {
	list := []map[string]any{}
	for id, conf := range c.s.ConfsOf(name) {
		list = append(list, c.vmStatus(id, conf))
	}
	return list
}

func apiVMs(c *call, vars map[string]string) (any, error) { return c.vmsOf(vars["node"]), nil }

func apiNetwork(c *call, _ map[string]string) (any, error) {
	list := []map[string]any{{"iface": "eno1", "type": "eth", "active": 1, "exists": 1, "method": "manual", "priority": 3}}
	if c.bridgeExists(c.s.Config.Bridge) {
		list = append(list, map[string]any{
			"iface": c.s.Config.Bridge, "type": "bridge", "active": 1, "autostart": 1, "method": "static",
			"bridge_ports": "eno1", "bridge_stp": "off", "bridge_fd": "0", "priority": 4,
		})
	}
	return list, nil
}

// shuffled returns a list in a different order each time, as Proxmox prints a set.
func shuffled(list string) string {
	all := strings.Split(list, ",")
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] }) //nolint:gosec // any order will do
	return strings.Join(all, ",")
}

func apiStorageConfig(c *call, _ map[string]string) (any, error) {
	list := []map[string]any{}
	for _, st := range c.s.Storages() {
		list = append(list, map[string]any{"storage": st.Name, "type": st.Kind, "content": shuffled(st.Content), "shared": number01(st.Shared)})
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
		"type": st.Kind, "content": shuffled(st.Content), "active": 1, "enabled": 1, "shared": number01(st.Shared),
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
