package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// qmpCommand gives a machine's monitor one command without arguments.
func qmpCommand(ctx context.Context, socket, command string) error {
	conn, err := dialUnix(ctx, socket)
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
	for _, name := range []string{"qmp_capabilities", command} {
		if err := qmpExecute(conn, answers, name); err != nil {
			return fmt.Errorf("QEMU monitor command %s: %w", name, err)
		}
	}
	return nil
}

// qmpExecute sends a command and skips the events that come before its answer.
func qmpExecute(conn net.Conn, answers *json.Decoder, name string) error {
	if err := json.NewEncoder(conn).Encode(map[string]string{"execute": name}); err != nil {
		return err
	}
	for {
		var answer struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := answers.Decode(&answer); err != nil {
			return err
		}
		if answer.Error != nil {
			return fmt.Errorf("%s", answer.Error.Desc)
		}
		if answer.Return != nil {
			return nil
		}
	}
}
