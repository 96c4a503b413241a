package proxmox

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"path"
	"strings"
	"time"

	"linus/embed"
	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

// runScript keeps the script's process id in a file for as long as it runs, for
// stopScript, and passes its exit code on; 127 when there is no script.
const runScript = `[ -f "$2" ] || exit 127
bash -c 'echo $$ >"$1" && exec bash "$2"' run "$1" "$2"; s=$?; rm -f -- "$1"; exit "$s"`

// stopScript tells the script with the given file to stop, and returns when it
// has undone its work and ended. It is TERM to the script alone: the commands
// it runs must end by themselves before it can know what to undo. No file
// within five seconds: it has ended already.
const stopScript = `n=0
until [ -s "$1" ]; do n=$((n + 1)); [ "$n" -le 50 ] || exit 0; sleep 0.1; done
kill -TERM "$(cat "$1")"
n=0
while [ -e "$1" ]; do n=$((n + 1)); [ "$n" -le 3000 ] || exit 1; sleep 0.1; done`

// call is one run of a host script.
type call struct {
	op     string // for errors
	script string
	env    map[string]string
	onLine func(key, value string)
}

// run runs a host script to its end and answers what it said; the error is a
// *job.HostError unless it exited with 0 and said success. When ctx ends the
// script is stopped first, and its roll-back awaited.
func (p *Provider) run(ctx context.Context, c call) (result.Result, error) {
	res, err := p.runOnce(ctx, c)
	var exit *remote.ExitError
	if errors.As(err, &exit) && exit.Code == 127 && len(res.Lines) == 0 {
		// Somebody has cleaned the host up since it was uploaded.
		p.scripts.forget(c.script)
		res, err = p.runOnce(ctx, c)
	}
	var cancelled *remote.CancelError
	if errors.As(err, &cancelled) && cancelled.End == nil && res.Success() {
		err = nil // it was done before it could be stopped
	}
	if err == nil && !res.Success() {
		err = errors.New("the script ended without a result")
	}
	if err == nil {
		return res, nil
	}
	return res, p.scriptError(ctx, c.op, res, err)
}

func (p *Provider) runOnce(ctx context.Context, c call) (result.Result, error) {
	file, err := p.scripts.ensure(ctx, c.script)
	if err != nil {
		return result.Result{}, err
	}
	nonce := rand.Text()
	env := map[string]string{"LINUS_NONCE": nonce}
	for name, value := range c.env {
		env[name] = value
	}
	pid := path.Join(p.o.ScriptDir, "run", nonce+".pid")
	stop := remote.Quote("sh", "-c", stopScript, "stop", pid)
	log := &lineLog{log: p.o.Log.With("host", p.o.Host.Login(), "script", c.script)}

	out, in := io.Pipe()
	type parsed struct {
		res result.Result
		err error
	}
	answer := make(chan parsed, 1)
	go func() { // ends with the pipe, below
		res, err := result.Parse(out, nonce, c.onLine)
		answer <- parsed{res, err}
	}()
	began := time.Now()
	err = p.o.Host.Run(ctx, remote.Command{
		Name: c.script, Line: remote.EnvLine(env, "bash", "-c", runScript, "run", pid, file),
		Stdout: in, Stderr: log, OnCancel: stop, CancelWait: p.o.RollbackWait,
	})
	_ = in.Close()
	got := <-answer
	if remote.ClassOf(err) == remote.Lost {
		p.stopLost(ctx, c, stop)
	}
	for _, warning := range got.res.All("LINUS_WARNING") {
		log.log.WarnContext(ctx, "script warned", "text", warning)
	}
	log.log.DebugContext(ctx, "script ended", "duration_ms", time.Since(began).Milliseconds(), "err", err)
	return got.res, errors.Join(err, got.err)
}

// stopLost stops a script whose connection broke: nobody would learn what it
// makes from now on.
func (p *Provider) stopLost(ctx context.Context, c call, stop string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.o.RollbackWait)
	defer cancel()
	if err := p.o.Host.Run(ctx, remote.Command{Name: "stop " + c.script, Line: stop}); err != nil {
		p.o.Log.WarnContext(ctx, "script not stopped after its connection broke", "script", c.script, "err", err)
	}
}

// scripts are the host scripts' uploaded copies, each under a name with its hash.
type scripts struct {
	host  *remote.Pool
	dir   string
	turn  chan struct{}   // one upload at a time
	there map[string]bool // guarded by turn
}

// ensure answers the script's path on the host, uploading it where it is not.
func (s *scripts) ensure(ctx context.Context, name string) (string, error) {
	script, err := embed.Script(name)
	if err != nil {
		return "", err
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	file := path.Join(s.dir, name+"-"+script.SHA256[:12]+".sh")
	if s.there[name] {
		return file, nil
	}
	const absent = 66
	const look = `mkdir -p -m 0700 -- "$1" "$1/run" || exit 1; [ "$(sha256sum 2>/dev/null <"$2")" = "$3  -" ] || exit 66`
	err = s.host.Run(ctx, remote.Command{Name: "prepare " + s.dir, Line: remote.Quote("sh", "-c", look, "look", s.dir, file, script.SHA256)})
	var exit *remote.ExitError
	if errors.As(err, &exit) && exit.Code == absent {
		err = s.host.Upload(ctx, remote.File{Path: file, Data: script.Body, Mode: 0o700})
	}
	if err != nil {
		return "", err
	}
	s.there[name] = true
	return file, nil
}

func (s *scripts) forget(name string) {
	s.turn <- struct{}{}
	delete(s.there, name)
	<-s.turn
}

// exitClass are the scripts' exit codes.
var exitClass = map[int]job.HostClass{
	1: job.HostInvalid, 2: job.HostDependency, 3: job.HostConfig, 4: job.HostOffline, 5: job.HostVM, 6: job.HostTimeout,
	129: job.HostCancelled, 130: job.HostCancelled, 141: job.HostCancelled, 143: job.HostCancelled,
}

// scriptError turns a script's end into a host error in the script's own words.
func (p *Provider) scriptError(ctx context.Context, op string, res result.Result, err error) error {
	e := &job.HostError{Op: op, Host: p.o.Host.Login(), Text: res.Failure(), Remedy: res.Remedy()}
	var cancelled *remote.CancelError
	var exit *remote.ExitError
	switch {
	case errors.As(err, &cancelled):
		e.Class = job.HostCancelled
		if !errors.As(cancelled.End, &exit) {
			e.Text = "cancelled, and whether the script has undone its work is not known: " + err.Error()
			e.Remedy = "see what is left with list-vms"
		}
	case errors.As(err, &exit) && exitClass[exit.Code] != "":
		e.Class = exitClass[exit.Code]
	case errors.As(err, &exit) && exit.Code == 255:
		// What ssh itself exits with; no script of ours does.
		e.Class = job.HostUnreachable
	case remote.ClassOf(err) != "", ctx.Err() != nil:
		return p.hostError(ctx, op, err)
	default:
		e.Class = job.HostVM
	}
	if e.Text == "" {
		e.Text = err.Error()
	}
	return e
}

// remedies say what to do about each class of connection fault.
var remedies = map[remote.Class]struct {
	class  job.HostClass
	remedy string
}{
	remote.Refused:     {job.HostUnreachable, "check PROXMOX_SSH_PORT, and that sshd runs on the host"},
	remote.Unreachable: {job.HostUnreachable, "check PROXMOX_HOST and the network between here and the host"},
	remote.Timeout:     {job.HostUnreachable, "check that the host is up and no firewall drops SSH (PROXMOX_HOST, PROXMOX_SSH_PORT)"},
	remote.Lost:        {job.HostUnreachable, "try again; if it stays so, look at sshd's log on the host"},
	remote.Auth:        {job.HostAuth, "check PROXMOX_SSH_USER and PROXMOX_SSH_KEY_PATH; the public key belongs into authorized_keys on the host"},
	remote.HostKeyUnknown: {job.HostKeyChanged, "compare it with what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints on the host, " +
		"then run `linus host trust`"},
	remote.HostKeyChanged: {job.HostKeyChanged, "if the host was reinstalled, remove its line from known_hosts (PROXMOX_KNOWN_HOSTS) and run `linus host trust`; " +
		"if not, something stands between here and the host"},
}

// hostError turns a fault of the connection into a host error.
func (p *Provider) hostError(ctx context.Context, op string, err error) error {
	e := &job.HostError{Op: op, Host: p.o.Host.Login(), Class: job.HostUnreachable, Text: err.Error()}
	if known, ok := remedies[remote.ClassOf(err)]; ok {
		e.Class, e.Remedy = known.class, known.remedy
	} else if ctx.Err() != nil {
		e.Class = job.HostCancelled
	}
	return e
}

// Bounds of what one run may put into our log.
const (
	maxLogLines = 2000
	maxLogLine  = 1000 // bytes
)

// lineLog logs a script's stderr, which is for people, line by line.
type lineLog struct {
	log   *slog.Logger
	rest  []byte
	lines int
}

func (l *lineLog) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			break
		}
		l.rest = rest
		if l.lines++; l.lines <= maxLogLines {
			l.log.Debug("script", "text", strings.ToValidUTF8(string(line[:min(len(line), maxLogLine)]), "\uFFFD"))
		}
	}
	if len(l.rest) > maxLogLine {
		l.rest = l.rest[:maxLogLine]
	}
	return len(b), nil
}
