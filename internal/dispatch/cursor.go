package dispatch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// Cursor is a request for a machine that Cursor's `agent worker controller` has claimed and for which it
// runs its spawn hook (cursor.com/docs/cloud-agent/self-hosted-guides/pool, "Worker controller").
type Cursor struct {
	Pool, Worker string // names of the pool, and of the worker that the request is claimed for
	Token        string // the request's own; controllers with --session-token provide it
	API, Public  string // where the worker connects; empty: Cursor's

	// Idle is how long the worker waits for more work once the agent's session has ended.
	Idle time.Duration
}

var (
	cursorName   = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$`)
	cursorSecret = lazyregexp.New(`^[!-~]+$`)
)

// ReadCursor reads the request from the environment of a spawn hook.
func ReadCursor(env map[string]string) (Cursor, error) {
	c := Cursor{Pool: env["CURSOR_POOL"], Worker: env["CURSOR_AGENT_WORKER_ID"], Token: env["CURSOR_AUTH_TOKEN"], API: env["CURSOR_API_URL"], Public: env["CURSOR_API_ENDPOINT"]}
	switch {
	case c.Worker == "":
		return c, errors.New("CURSOR_AGENT_WORKER_ID is not set: this is run by agent worker controller, as its --spawn hook")
	case !cursorName.MatchString(c.Worker):
		return c, fmt.Errorf("CURSOR_AGENT_WORKER_ID: %.100q is not a worker's ID", c.Worker)
	case !cursorName.MatchString(c.Pool):
		return c, fmt.Errorf("CURSOR_POOL: %.100q is not a pool's name", c.Pool)
	case c.Token == "":
		return c, errors.New("CURSOR_AUTH_TOKEN is not set: start the controller with --session-token, for no VM gets the service account's key")
	case len(c.Token) > 16384 || !cursorSecret.MatchString(c.Token):
		return c, errors.New("CURSOR_AUTH_TOKEN is not a token: it has blanks or other characters than ASCII, or is longer than 16384 bytes")
	}
	for name, at := range map[string]string{"CURSOR_API_URL": c.API, "CURSOR_API_ENDPOINT": c.Public} {
		if u, err := url.Parse(at); at != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsAny(at, " \n")) {
			return c, fmt.Errorf("%s: %.100q is not the URL of an API", name, at)
		}
	}
	return c, nil
}

// SpawnCursor runs a worker for the request in its own VM, and returns the job's ID once the VM has what
// it needs. Called again for the same worker, it returns the same job.
func SpawnCursor(ctx context.Context, o Options, c Cursor) (id string, err error) {
	d := &dispatcher{Options: o, kind: "cursor", queue: c.Pool, q: cursor{c}}
	s := Session{Work: Work{ID: c.Worker}, Name: fmt.Sprintf("linus-dispatch-%x", sha256.Sum256([]byte(c.Pool+"\n"+c.Worker)))[:len("linus-dispatch-")+26]}
	if len(c.Worker) > 63 { // other IDs may have the same prefix
		s.Work.ID = c.Worker[:36] + "-" + s.Name[len(s.Name)-26:]
	}
	if err := d.start(ctx, &s, o.Manifest); err != nil {
		if s.Job != "" {
			d.cancel(ctx, s.Job)
		}
		return s.Job, err
	}
	return s.Job, nil
}

// cursor is the queue of one piece of work that is already claimed.
type cursor struct{ Cursor }

func (cursor) Waiting(context.Context) ([]Work, error)              { return nil, nil }
func (cursor) Claim(context.Context, Work) (bool, error)            { return true, nil }
func (cursor) Hold(context.Context, Session, <-chan struct{}) error { return nil }
func (cursor) Release(context.Context, Session, *job.Outcome) error { return nil }
func (c cursor) Handover(context.Context, Session) (h Handover, err error) {
	return Handover{Secret: []byte(strings.Join([]string{c.Pool, c.Worker, strconv.Itoa(int(c.Idle / time.Second)), c.API, c.Public, c.Token}, "\n") + "\n")}, nil
}

// Task runs the worker until it has released its session.
func (cursor) Task() string { return cursorTask }

const cursorTask = `# Runs a worker of Cursor's cloud agents.
program=$(command -v cursor-agent) || program=$(command -v agent) || program=
if [[ -z $program ]]; then
  echo "the VM has no agent, Cursor's CLI: put it into the template (cursor.com/docs/cli/installation)" >&2
  exit 127
fi
{
  read -r pool
  read -r worker
  read -r idle
  read -r api
  read -r public
  read -r CURSOR_AUTH_TOKEN
} <"$item"
rm -f -- "$item"
export CURSOR_AUTH_TOKEN CURSOR_AGENT_WORKER_ID=$worker
[[ -z $api ]] || export CURSOR_API_URL=$api
[[ -z $public ]] || export CURSOR_API_ENDPOINT=$public
mkdir -p "$HOME/workspace"
cd "$HOME/workspace"
exec "$program" worker --pool "$pool" --worker-id "$worker" --idle-release-timeout "$idle" start </dev/null
`
