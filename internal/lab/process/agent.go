package process

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"

	"linus/internal/capped"
)

// agentServer is a guest's side of the QEMU guest agent protocol.
type agentServer struct {
	guest    *guest
	commands map[string]func(arguments json.RawMessage) (any, error)

	mu    sync.Mutex
	execs map[int]*agentExec
}

const agentOutputLimit = 16 << 20 // the real agent's limit

func newAgent(g *guest) *agentServer {
	a := &agentServer{guest: g, execs: map[int]*agentExec{}}
	a.commands = map[string]func(json.RawMessage) (any, error){
		"guest-ping":                   always(struct{}{}),
		"guest-sync-delimited":         taking(func(v struct{ ID json.Number }) (any, error) { return v.ID, nil }),
		"guest-network-get-interfaces": taking(a.interfaces),
		"guest-exec":                   taking(a.exec),
		"guest-exec-status":            taking(a.execStatus),
	}
	return a
}

// taking returns a command that takes arguments of type A.
func taking[A any](do func(A) (any, error)) func(json.RawMessage) (any, error) {
	return func(raw json.RawMessage) (any, error) {
		var arguments A
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, &arguments); err != nil {
				return nil, err
			}
		}
		return do(arguments)
	}
}

func always(answer any) func(json.RawMessage) (any, error) {
	return func(json.RawMessage) (any, error) { return answer, nil }
}

// serve handles requests, one per line, until the client disconnects.
func (a *agentServer) serve(conn net.Conn) {
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		// A 0xff from the client means that what came before is to be dropped.
		if at := bytes.LastIndexByte(line, 0xff); at >= 0 {
			line = line[at+1:]
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if _, err := conn.Write(a.answer(line)); err != nil {
			return
		}
	}
}

func (a *agentServer) answer(line []byte) []byte {
	var request struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments"`
	}
	fault := func(class, text string) []byte {
		raw, _ := json.Marshal(map[string]any{"error": map[string]string{"class": class, "desc": text}}) // strings marshal
		return append(raw, '\n')
	}
	if err := json.Unmarshal(line, &request); err != nil {
		return fault("GenericError", "JSON parse error, "+err.Error())
	}
	command, ok := a.commands[request.Execute]
	if !ok {
		return fault("CommandNotFound", "The command "+request.Execute+" has not been found")
	}
	result, err := command(request.Arguments)
	if err != nil {
		return fault("GenericError", err.Error())
	}
	raw, err := json.Marshal(map[string]any{"return": result})
	if err != nil {
		return fault("GenericError", err.Error())
	}
	if request.Execute == "guest-sync-delimited" {
		raw = append([]byte{0xff}, raw...)
	}
	return append(raw, '\n')
}

func (a *agentServer) interfaces(struct{}) (any, error) {
	address := func(ip string) []any {
		if strings.Contains(ip, ":") {
			return []any{
				map[string]any{"ip-address": "fe80::5054:ff:fe00:1", "ip-address-type": "ipv6", "prefix": 64},
				map[string]any{"ip-address": ip, "ip-address-type": "ipv6", "prefix": 128},
			}
		}
		return []any{map[string]any{"ip-address": ip, "ip-address-type": "ipv4", "prefix": 8}}
	}
	list := []any{map[string]any{"name": "lo", "hardware-address": "00:00:00:00:00:00", "ip-addresses": address("127.0.0.1")}}
	if mac, ip := a.guest.card(); mac != "" {
		card := map[string]any{"name": "eth0", "hardware-address": mac}
		if ip != "" {
			card["ip-addresses"] = address(ip)
		}
		list = append(list, card)
	}
	return list, nil
}

// agentExec is a command run by guest-exec.
type agentExec struct {
	*program
	out, err capped.Writer
}

// execArguments are the arguments of guest-exec; its output is always captured.
type execArguments struct {
	Path  string
	Arg   []string
	Env   []string
	Input []byte `json:"input-data"` // base64 in JSON
}

func (a *agentServer) exec(v execArguments) (any, error) {
	path, err := exec.LookPath(v.Path)
	if err != nil {
		return nil, fmt.Errorf("Guest agent command failed, error was 'Failed to execute child process “%s” (No such file or directory)'", v.Path) //nolint:staticcheck // the agent's own text
	}
	env := v.Env
	if env == nil {
		env = []string{"PATH=" + guestPath, "HOME=/root", "LANG=C.UTF-8"}
	}
	run := &agentExec{out: capped.Writer{Most: agentOutputLimit}, err: capped.Writer{Most: agentOutputLimit}}
	if run.program, err = a.guest.procs.run(append([]string{path}, v.Arg...), "/", env, nil, nil, bytes.NewReader(v.Input), &run.out, &run.err); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.execs[run.pid] = run
	return map[string]int{"pid": run.pid}, nil
}

// execStatus returns a command's status. It forgets the command once it has reported its end.
func (a *agentServer) execStatus(v struct{ PID int }) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	run, ok := a.execs[v.PID]
	if !ok {
		return nil, fmt.Errorf("Invalid parameter 'pid'") //nolint:staticcheck // the agent's own text
	}
	select {
	case status := <-run.done:
		run.drained.Wait()
		delete(a.execs, v.PID)
		answer := map[string]any{"exited": true}
		if status.Signaled() {
			answer["signal"] = int(status.Signal())
		} else {
			answer["exitcode"] = status.ExitStatus()
		}
		for name, output := range map[string]*capped.Writer{"out": &run.out, "err": &run.err} {
			if len(output.Bytes()) > 0 {
				answer[name+"-data"] = base64.StdEncoding.EncodeToString(output.Bytes())
			}
			if output.Cut() {
				answer[name+"-truncated"] = true
			}
		}
		return answer, nil
	default:
		return map[string]any{"exited": false}, nil
	}
}
