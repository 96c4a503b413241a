package pve

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"

	"linus/internal/lab/state"
)

// vmOf is the VM an API path names.
func (c *call) vmOf(vars map[string]string) (int, *state.Conf, error) {
	id, err := strconv.Atoi(vars["vmid"])
	if err != nil {
		return 0, nil, state.Fail(255, "400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID")
	}
	conf, err := c.s.LoadConfOf(vars["node"], id)
	return id, conf, err
}

func apiVMConfig(c *call, vars map[string]string) (any, error) {
	_, conf, err := c.vmOf(vars)
	if err != nil {
		return nil, err
	}
	shown := map[string]any{"digest": digest(conf)}
	for key, value := range c.shownConf(conf) {
		shown[key] = perlText(value)
		// Numbers are numbers where PVE's schema says so.
		if n, err := strconv.Atoi(value); err == nil && key != "memory" && key != "description" && key != "name" {
			shown[key] = n
		}
	}
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
	if conf.AgentEnabled() {
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
	return map[string]any{"content": perlText(content.String()), "bytes-read": content.Len()}, nil
}
