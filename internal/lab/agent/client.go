// Package agent is a client of the QEMU guest agent protocol: JSON lines over a VM's agent socket.
// It works with QEMU's agent and with the process driver's.
package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"linus/internal/lab/sys"
)

// How long a client waits for the agent.
const (
	PingTimeout = 3 * time.Second  // PVE's
	Timeout     = 10 * time.Second // for other commands
)

// Error is the agent's own refusal of a command.
type Error string

func (e Error) Error() string { return string(e) }

// Call runs one command in the guest's agent and returns its return value, or an Error if the agent
// refuses. It first sends guest-sync-delimited: the channel may still hold answers nobody has read.
func Call(ctx context.Context, socket, command string, arguments any, timeout time.Duration) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := sys.DialUnix(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	if err := agentSync(conn, r); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(conn).Encode(Request{command, arguments}); err != nil {
		return nil, err
	}
	return agentAnswer(r)
}

func agentSync(w io.Writer, r *bufio.Reader) error {
	id := rand.Int64N(1 << 31)
	if _, err := fmt.Fprintf(w, "\xff{\"execute\":\"guest-sync-delimited\",\"arguments\":{\"id\":%d}}\n", id); err != nil {
		return err
	}
	for {
		if _, err := r.ReadBytes(0xff); err != nil {
			return err
		}
		raw, err := agentAnswer(r)
		if err != nil {
			return err
		}
		if string(bytes.TrimSpace(raw)) == strconv.FormatInt(id, 10) {
			return nil
		}
	}
}

func agentAnswer(r *bufio.Reader) (json.RawMessage, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	var answer Answer
	if err := json.Unmarshal(line, &answer); err != nil {
		return nil, fmt.Errorf("agent answered %q: %w", line, err)
	}
	return answer.Value()
}

// Request is a command; QEMU's monitor uses the same form.
type Request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
}

// Answer is a reply. For an event of the monitor, both fields are empty.
type Answer struct {
	Return json.RawMessage
	Error  *struct{ Desc string }
}

// Value returns what the command returned, or the Error it ended with.
func (a Answer) Value() (json.RawMessage, error) {
	if a.Error != nil {
		return nil, Error(a.Error.Desc)
	}
	return a.Return, nil
}
