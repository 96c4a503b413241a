package lab

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
)

// The client's side of the QEMU guest agent protocol: JSON lines over the
// machine's agent socket. It speaks to QEMU's and to the process driver's.

const (
	agentPingTimeout = 3 * time.Second       // PVE's
	agentTimeout     = 10 * time.Second      // for other commands
	firstExecPoll    = 20 * time.Millisecond // then ever rarer, to spare an emulated guest
)

// agentError is an agent's own refusal of a command.
type agentError string

func (e agentError) Error() string { return string(e) }

// agentCall runs one command in the guest's agent and returns its return
// value; an agentError is the agent's own. It begins with guest-sync-delimited, because the channel may still
// hold returns nobody read.
func agentCall(ctx context.Context, socket, command string, arguments any, timeout time.Duration) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := dialUnix(ctx, socket)
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
	request := map[string]any{"execute": command}
	if arguments != nil {
		request["arguments"] = arguments
	}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
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
	var answer struct {
		Return json.RawMessage `json:"return"`
		Error  *struct {
			Desc string `json:"desc"`
		} `json:"error"`
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return nil, fmt.Errorf("agent answered %q: %w", line, err)
	}
	if answer.Error != nil {
		return nil, agentError(answer.Error.Desc)
	}
	return answer.Return, nil
}
