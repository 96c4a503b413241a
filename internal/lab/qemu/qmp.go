package qemu

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"linus/internal/lab/sys"
)

// Monitor gives the monitor of the machine in runDir one command; arguments
// may be nil.
func Monitor(ctx context.Context, runDir, command string, arguments map[string]any) error {
	_, err := ask(ctx, runDir, command, arguments)
	return err
}

// ask is Monitor with what the command returns.
func ask(ctx context.Context, runDir, command string, arguments map[string]any) (json.RawMessage, error) {
	conn, err := sys.DialUnix(ctx, filepath.Join(runDir, qmpName))
	if err != nil {
		return nil, fmt.Errorf("reach QEMU's monitor: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	answers := json.NewDecoder(conn)
	var greeting struct {
		QMP json.RawMessage `json:"QMP"`
	}
	if err := answers.Decode(&greeting); err != nil {
		return nil, fmt.Errorf("greet QEMU's monitor: %w", err)
	}
	if _, err := qmpExecute(conn, answers, "qmp_capabilities", nil); err != nil {
		return nil, fmt.Errorf("QEMU monitor command qmp_capabilities: %w", err)
	}
	raw, err := qmpExecute(conn, answers, command, arguments)
	if err != nil {
		return nil, fmt.Errorf("QEMU monitor command %s: %w", command, err)
	}
	return raw, nil
}

// qmpExecute sends a command and skips the events that come before its answer.
func qmpExecute(conn net.Conn, answers *json.Decoder, name string, arguments map[string]any) (json.RawMessage, error) {
	request := map[string]any{"execute": name}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return nil, err
	}
	for {
		var answer struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := answers.Decode(&answer); err != nil {
			return nil, err
		}
		if answer.Error != nil {
			return nil, fmt.Errorf("%s", answer.Error.Desc)
		}
		if answer.Return != nil {
			return answer.Return, nil
		}
	}
}
