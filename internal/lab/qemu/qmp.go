package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"linus/internal/lab/agent"
	"linus/internal/lab/sys"
)

// Monitor sends one command to the monitor of the machine in runDir; arguments may be nil.
func Monitor(ctx context.Context, runDir, command string, arguments map[string]any) error {
	return ask(ctx, runDir, command, arguments, new(json.RawMessage))
}

// ask is like Monitor, and decodes what the command returns.
func ask(ctx context.Context, runDir, command string, arguments map[string]any, answer any) error {
	conn, err := sys.DialUnix(ctx, filepath.Join(runDir, qmpName))
	if err != nil {
		return fmt.Errorf("reach QEMU's monitor: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	answers := json.NewDecoder(conn)
	var greeting struct {
		QMP json.RawMessage `json:"QMP"`
	}
	if err := answers.Decode(&greeting); err != nil {
		return fmt.Errorf("greet QEMU's monitor: %w", err)
	}
	if _, err := qmpExecute(conn, answers, "qmp_capabilities", nil); err != nil {
		return fmt.Errorf("QEMU monitor command qmp_capabilities: %w", err)
	}
	raw, err := qmpExecute(conn, answers, command, arguments)
	if err != nil {
		return fmt.Errorf("QEMU monitor command %s: %w", command, err)
	}
	return json.Unmarshal(raw, answer)
}

// qmpExecute sends a command and skips the events that come before its answer.
func qmpExecute(conn net.Conn, answers *json.Decoder, name string, arguments map[string]any) (json.RawMessage, error) {
	request := agent.Request{Execute: name}
	if arguments != nil {
		request.Arguments = arguments
	}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return nil, err
	}
	for {
		var answer agent.Answer
		if err := answers.Decode(&answer); err != nil {
			return nil, err
		}
		if answer.Error != nil || answer.Return != nil {
			return answer.Value()
		}
	}
}
