package pve

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"linus/internal/lab/cloudinit"
	"linus/internal/lab/state"
)

// confOf reads the config of a VM on any node.
func (c *call) confOf(node string, id int) (*state.Conf, error) {
	raw, err := os.ReadFile(filepath.Join(c.s.NodeDir(node, "qemu-server"), strconv.Itoa(id)+".conf"))
	if errors.Is(err, fs.ErrNotExist) || c.s.Lists(state.FaultMissingTemplate, strconv.Itoa(id)) {
		return nil, state.Fail(2, "Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", node, id)
	}
	if err != nil {
		return nil, err
	}
	return state.ParseConf(string(raw)), nil
}

// vmOf is the VM an API path names.
func (c *call) vmOf(vars map[string]string) (int, *state.Conf, error) {
	id, err := strconv.Atoi(vars["vmid"])
	if err != nil {
		return 0, nil, state.Fail(255, "400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID")
	}
	conf, err := c.confOf(vars["node"], id)
	return id, conf, err
}

func apiVMConfig(c *call, vars map[string]string) (any, error) {
	_, conf, err := c.vmOf(vars)
	if err != nil {
		return nil, err
	}
	shown := plain(c.shownConf(conf)).(map[string]any)
	for key, value := range shown {
		// Numbers are numbers where PVE's schema says so.
		if n, err := strconv.Atoi(value.(string)); err == nil && key != "memory" && key != "description" && key != "name" {
			shown[key] = n
		}
	}
	shown["digest"] = digest(conf)
	return shown, nil
}

func apiVMStatus(c *call, vars map[string]string) (any, error) {
	id, conf, err := c.vmOf(vars)
	if err != nil {
		return nil, err
	}
	status := c.vmStatus(id, conf)
	c.askMonitor(state.VM{ID: id, Conf: conf}, status)
	status["ha"] = map[string]any{"managed": 0}
	if state.Props(conf.Get("agent"))[""] == "1" || state.Props(conf.Get("agent"))["enabled"] == "1" {
		status["agent"] = 1
	}
	return status, nil
}

func apiAgent(c *call, vars map[string]string) (any, error) {
	id, _, err := c.vmOf(vars)
	if err != nil {
		return nil, err
	}
	result, err := c.agentResult(id, vars["command"])
	if err != nil {
		return nil, err
	}
	return map[string]any{"result": result}, nil
}

func apiExecStatus(c *call, vars map[string]string) (any, error) {
	id, _, err := c.vmOf(vars)
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(c.opts["pid"])
	if err != nil {
		return nil, state.Fail(255, "400 Parameter verification failed.\npid: property is missing and it is not optional")
	}
	status, err := c.execStatus(id, pid)
	if err != nil {
		return nil, err
	}
	return status.shown(), nil
}

// apiFileRead reads a file of the guest through its agent, at most 16 MiB.
func apiFileRead(c *call, vars map[string]string) (any, error) {
	id, _, err := c.vmOf(vars)
	if err != nil {
		return nil, err
	}
	if c.opts["file"] == "" {
		return nil, state.Fail(255, "400 Parameter verification failed.\nfile: property is missing and it is not optional")
	}
	raw, err := c.agent(id, "guest-file-open", map[string]any{"path": c.opts["file"], "mode": "r"})
	if err != nil {
		return nil, err
	}
	handle := json.RawMessage(raw)
	var content strings.Builder
	for content.Len() < 16<<20 {
		raw, err := c.agent(id, "guest-file-read", map[string]any{"handle": handle, "count": 1 << 20})
		if err != nil {
			return nil, err
		}
		var part struct {
			Data string `json:"buf-b64"`
			EOF  bool   `json:"eof"`
		}
		if err := json.Unmarshal(raw, &part); err != nil {
			return nil, err
		}
		data, err := base64.StdEncoding.DecodeString(part.Data)
		if err != nil {
			return nil, err
		}
		content.Write(data)
		if part.EOF {
			break
		}
	}
	if _, err := c.agent(id, "guest-file-close", map[string]any{"handle": handle}); err != nil {
		return nil, err
	}
	return map[string]any{"content": content.String(), "bytes-read": content.Len()}, nil
}

// qmCloudinitDump prints what the VM's cloud-init will read.
func qmCloudinitDump(c *call) error {
	conf, err := c.s.LoadConf(c.id())
	if err != nil {
		return err
	}
	seed := cloudinit.New(c.id(), conf, c.drv.Nameserver(c.s))
	fmt.Fprint(c.stdout, map[string]string{"user": seed.User, "network": seed.Network, "meta": seed.Meta}[c.opts["type"]])
	return nil
}
