package pve

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"

	"linus/internal/lab/agent"
	"linus/internal/lab/state"
	"linus/internal/sleep"
)

const firstExecPoll = 20 * time.Millisecond // then less and less often, to spare an emulated guest

var errAgentSilent = state.Fail(255, "QEMU guest agent is not running")

// agent makes PVE's checks before it talks to an agent, in PVE's order, and then the call.
func (c *call) agent(id int, command string, arguments any) (json.RawMessage, error) {
	conf, err := c.s.LoadConf(id)
	if err != nil {
		return nil, err
	}
	if !conf.AgentEnabled() {
		return nil, state.Fail(255, "No QEMU guest agent configured")
	}
	if _, running := c.s.Pid(id); !running {
		return nil, state.Fail(255, "VM %d is not running", id)
	}
	socket := c.s.AgentSocket(id)
	if err := c.pingAgent(id, socket); err != nil {
		return nil, err
	}
	raw, err := agent.Call(c.ctx, socket, command, arguments, agent.Timeout)
	var refused agent.Error
	switch {
	case errors.As(err, &refused):
		return nil, state.Fail(255, "Agent error: %s", refused)
	case err != nil:
		return nil, state.Fail(255, "VM %d qga command '%s' failed - got timeout", id, command)
	}
	return raw, nil
}

// pingAgent waits 3 s for an answer, as PVE does, even for an agent that a fault keeps silent.
func (c *call) pingAgent(id int, socket string) error {
	delay, _ := strconv.ParseFloat(c.s.Fault(state.FaultAgentDelay), 64)
	late := time.Until(c.startedAt(id).Add(time.Duration(delay * float64(time.Second))))
	if c.s.Fault(state.FaultAgentSilent) != "" || late > agent.PingTimeout {
		if err := sleep.For(c.ctx, agent.PingTimeout); err != nil {
			return err
		}
		return errAgentSilent
	}
	if err := sleep.For(c.ctx, late); err != nil {
		return err
	}
	if _, err := agent.Call(c.ctx, socket, "guest-ping", nil, agent.PingTimeout); err != nil {
		return errAgentSilent
	}
	return nil
}

func qmGuestCmd(c *call) error {
	result, err := c.agentResult(c.id(), c.opts["command"])
	if err != nil {
		return err
	}
	return printPretty(c.stdout, result)
}

// agentResult runs an agent command without arguments, by PVE's name for it.
func (c *call) agentResult(id int, command string) (any, error) {
	raw, err := c.agent(id, "guest-"+command, nil)
	if err != nil {
		return nil, err
	}
	var result any
	if err := json.Unmarshal(raw, &result); err != nil {
		return nil, err
	}
	if list, ok := result.([]any); ok && command == "network-get-interfaces" && c.s.Fault(state.FaultExtraInterfaces) != "" {
		result = append(extraInterfaces(), list...)
	}
	return result, nil
}

// extraInterfaces are what a guest with Docker and without DHCP shows.
func extraInterfaces() []any {
	address := func(name, mac, ip string, prefix int) any {
		return map[string]any{
			"name": name, "hardware-address": mac,
			"ip-addresses": []any{map[string]any{"ip-address": ip, "ip-address-type": "ipv4", "prefix": prefix}},
		}
	}
	return []any{
		address("docker0", "02:42:ac:11:00:01", "172.17.0.1", 16),
		address("eth9", "bc:24:11:00:00:00", "169.254.12.34", 16),
		map[string]any{"name": "tun0", "hardware-address": "00:00:00:00:00:00"}, // no ip-addresses key at all
	}
}

// execStatus is an answer of guest exec-status, decoded as PVE shows it.
type execStatus struct {
	Exited   bool   `json:"exited"`
	ExitCode *int   `json:"exitcode"`
	Signal   *int   `json:"signal"`
	Out      string `json:"out-data"`
	Err      string `json:"err-data"`
	OutCut   bool   `json:"out-truncated"`
	ErrCut   bool   `json:"err-truncated"`
}

func (e execStatus) shown() map[string]any {
	shown := map[string]any{"exited": 0}
	if !e.Exited {
		return shown
	}
	shown["exited"] = 1
	if e.ExitCode != nil {
		shown["exitcode"] = *e.ExitCode
	}
	if e.Signal != nil {
		shown["signal"] = *e.Signal
	}
	for key, data := range map[string]string{"out-data": e.Out, "err-data": e.Err} {
		if raw, err := base64.StdEncoding.DecodeString(data); err == nil && len(raw) > 0 {
			shown[key] = perlText(string(raw))
		}
	}
	for key, cut := range map[string]bool{"out-truncated": e.OutCut, "err-truncated": e.ErrCut} {
		if cut {
			shown[key] = 1
		}
	}
	return shown
}

// qmGuestExec runs a command in the guest. It exits 0 whatever the command does, even if the
// command does not end in time: then it prints only the PID.
func qmGuestExec(c *call) error {
	if len(c.extra) == 0 {
		return state.Fail(255, "400 not enough arguments\nqm guest exec <vmid> [<extra-args>] [OPTIONS]")
	}
	arguments := map[string]any{"path": c.extra[0], "arg": c.extra[1:], "capture-output": true}
	if c.on("pass-stdin") {
		input, err := io.ReadAll(io.LimitReader(c.stdin, 1<<20))
		if err != nil {
			return err
		}
		arguments["input-data"] = base64.StdEncoding.EncodeToString(input)
	}
	raw, err := c.agent(c.id(), "guest-exec", arguments)
	if err != nil {
		return err
	}
	var started struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(raw, &started); err != nil {
		return err
	}
	timeout := 30
	if given, err := strconv.Atoi(c.opts["timeout"]); err == nil {
		timeout = given
	}
	if c.opts["synchronous"] == "0" {
		timeout = 0
	}
	deadline := time.Now().Add(time.Duration(timeout) * time.Second)
	for pause := firstExecPoll; timeout > 0 && time.Now().Before(deadline); pause = min(2*pause, time.Second) {
		status, err := c.execStatus(c.id(), started.PID)
		if err != nil {
			return err
		}
		if status.Exited {
			return printPretty(c.stdout, status.shown())
		}
		if err := sleep.For(c.ctx, min(pause, time.Until(deadline))); err != nil {
			return err
		}
	}
	return printPretty(c.stdout, map[string]any{"pid": started.PID})
}

func (c *call) execStatus(id, pid int) (execStatus, error) {
	var status execStatus
	raw, err := c.agent(id, "guest-exec-status", map[string]any{"pid": pid})
	if err != nil {
		return status, err
	}
	return status, json.Unmarshal(raw, &status)
}
