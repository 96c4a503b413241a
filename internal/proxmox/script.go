package proxmox

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"linus/embed"
	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
	"linus/internal/sleep"
	"linus/internal/term"
)

// call is one run of a host script.
type call struct {
	op       string // for errors
	script   string
	args     []string // of the script
	env      map[string]string
	guest    string // another script, for a VM, whose path on the host is passed as VM_RUNNER; empty: none
	replaces string // prefix of the IDs of earlier operations to stop as this one starts; empty: none
	onLine   func(key, value string)
	patience time.Duration // how long a host that does not respond is retried
}

// telling returns an onLine that reports a script's steps and warnings to progress, which may be nil.
func telling(progress func(job.Progress)) func(key, value string) {
	return func(key, value string) {
		switch {
		case progress == nil:
		case key == result.KeyStep:
			progress(readStep(value))
		case key == "LINUS_WARNING":
			progress(job.Progress{Warning: value})
		}
	}
}

// run runs a host script to its end and returns its result. The error is a *job.HostError unless the
// script exited with 0 and reported success. It is for scripts that can be repeated whatever happened to
// the first run: they are repeated if the connection is lost, and not stopped if ctx ends.
func (p *Provider) run(ctx context.Context, c call) (result.Result, error) {
	var res result.Result
	p.sign(&c)
	err := p.persist(ctx, c.op, c.patience, func() (bool, error) {
		var err error
		res, err = p.runOnce(ctx, c)
		return false, err
	})
	return p.verdict(ctx, c, res, err)
}

// sign adds the calling engine's ID and edition to a call's environment. Repetitions keep those of the
// engine that began the call.
func (p *Provider) sign(c *call) {
	env := map[string]string{}
	maps.Copy(env, c.env)
	setText(env, "LINUS_ENGINE", p.o.Engine())
	setText(env, "LINUS_EDITION", edition(p.o.Version))
	c.env = env
}

func (p *Provider) runOnce(ctx context.Context, c call) (result.Result, error) {
	nonce := rand.Text()
	env := map[string]string{"LINUS_NONCE": nonce}
	maps.Copy(env, c.env)
	var res result.Result
	err := p.scripts.use(ctx, p.withTools(c.script), func(files []string) error {
		p.setTools(env, files)
		a := p.parse(nonce, c)
		err := p.o.Host.Run(ctx, remote.Command{Name: c.script, Line: remote.EnvLine(env, append([]string{"bash", files[0]}, c.args...)...), Stdout: a})
		var parseErr error
		res, parseErr = a.end()
		return errors.Join(err, parseErr)
	})
	return res, err
}

// withTools returns the names of the scripts that a call needs on the host. The tool server is appended
// unless PlainTools is set.
func (p *Provider) withTools(names ...string) []string {
	if p.o.PlainTools {
		return names
	}
	return append(names, "tool-server")
}

// setTools tells a host script where the tool server is, among files in the order of withTools, or to
// start the tools itself.
func (p *Provider) setTools(env map[string]string, files []string) {
	if p.o.PlainTools {
		env["PROXMOX_TOOLS"] = "plain"
	} else {
		env["LINUS_TOOL_SERVER"] = files[len(files)-1]
	}
}

// news returns the warnings that the call's previous run did not have. Many VMs are looked at every few
// seconds, so a warning is logged once, until it changes.
func (p *Provider) news(c call, warnings []string) []string {
	key := c.script + " " + c.env["VM_ID"] + " " + c.env["LINUS_JOB"]
	if len(warnings) == 0 {
		p.warned.Delete(key)
		return nil
	}
	last, _ := p.warned.LoadOrStore(key, &said{})
	came, _ := last.(*said).set(warnings)
	return came
}

func (p *Provider) verdict(ctx context.Context, c call, res result.Result, err error) (result.Result, error) {
	log := p.o.Log.With("host", p.o.Host.Login(), "script", c.script)
	for _, warning := range p.news(c, res.All("LINUS_WARNING")) {
		log.WarnContext(ctx, "script warned", "text", warning)
	}
	if err == nil && !res.Success() {
		err = errors.New("the script ended without a result")
	}
	if err == nil {
		return res, nil
	}
	if exit, ok := errors.AsType[*remote.ExitError](err); ok {
		log.DebugContext(ctx, "script failed", "exit_code", exit.Code, "log", exit.Stderr)
	}
	return res, p.scriptError(ctx, c.op, res, err)
}

// answer parses what is written to it as a script's output.
type answer struct {
	*io.PipeWriter
	told int64 // bytes written to it
	done chan struct{}
	res  result.Result
	err  error
}

// keyLockRetry is the key of a line about a change that is retried because one of Proxmox's locks timed
// out: <try>/<tries>.
const keyLockRetry = "LINUS_LOCK_RETRY"

func (p *Provider) parse(nonce string, c call) *answer {
	told := func(key, value string) {
		if key == keyLockRetry && p.o.OnLockRetry != nil {
			p.o.OnLockRetry()
		}
		if c.onLine != nil {
			c.onLine(key, spoken(c.script, key, value))
		}
	}
	out, in := io.Pipe()
	a := &answer{PipeWriter: in, done: make(chan struct{})}
	go func() { // ends with the pipe, in answer.end
		defer close(a.done)
		a.res, a.err = result.Parse(out, nonce, told)
		for i, line := range a.res.Lines {
			a.res.Lines[i].Value = spoken(c.script, line.Key, line.Value)
		}
	}()
	return a
}

func (a *answer) Write(b []byte) (int, error) {
	a.told += int64(len(b))
	return a.PipeWriter.Write(b)
}

func (a *answer) end() (result.Result, error) {
	_ = a.Close()
	<-a.done
	return a.res, a.err
}

// persist repeats try with growing pauses while the host does not respond, until limit after its last
// response. try reports whether the host responded. The listener of ctx is notified once per outage, even
// if the host neither responds nor refuses. persist returns try's last error.
func (p *Provider) persist(ctx context.Context, op string, limit time.Duration, try func() (answered bool, err error)) error {
	pause := backoff.ExponentialBackOff{
		InitialInterval: 250 * time.Millisecond, Multiplier: 2, MaxInterval: 10 * time.Second, RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
	pause.Reset()
	told := false
	for heard := time.Now(); ; { // when the host last responded
		tried := func() bool { return told }
		if !told {
			tried = p.unanswered(ctx, op, heard.Add(max(limit, connecting)))
		}
		answered, err := try()
		told = tried()
		if answered {
			heard, told = time.Now(), false
			pause.Reset()
		}
		next := pause.NextBackOff()
		if err == nil || !remote.Passing(err) && !killed(err) || time.Since(heard)+next > limit {
			return err
		}
		if !told {
			told = true
			job.Waits(ctx, "the host", p.hostError(ctx, op, err), heard.Add(limit))
		}
		if ctx.Err() != nil {
			return err
		}
		p.o.Log.WarnContext(ctx, "host does not respond, retrying", "host", p.o.Host.Login(), "op", op, "until", heard.Add(limit), "err", err)
		if sleep.For(ctx, next) != nil {
			return err
		}
	}
}

// silence is how long a host may not answer before listeners are notified.
const silence = 1500 * time.Millisecond

// connecting is how long one connection may take: remote's default.
const connecting = 15 * time.Second

// unanswered notifies the listener of ctx if there is still no connection to the host after silence. The
// returned function cancels that, and reports whether the listener was notified.
func (p *Provider) unanswered(ctx context.Context, op string, until time.Time) (end func() (told bool)) {
	var mu sync.Mutex
	var told, over bool
	timer := time.AfterFunc(silence, func() {
		mu.Lock()
		defer mu.Unlock()
		if !over && !p.o.Host.Connected() {
			told = true
			job.Waits(ctx, "the host", fmt.Errorf("%s on %s: no answer yet", op, p.o.Host.Login()), until)
		}
	})
	return func() bool {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		return told
	}
}

// killed reports whether a signal ended a command on the host. Nobody here sends signals, so the host is
// going down, or short of memory.
func killed(err error) bool {
	var exit *remote.ExitError
	return errors.As(err, &exit) && exit.Signal != ""
}

// scripts are the uploaded copies of the host scripts, each with its hash in its name.
type scripts struct {
	host  *remote.Pool
	dir   string
	turn  chan struct{}   // allows one upload at a time
	there map[string]bool // guarded by turn
}

// ensure returns the script's path on the host, and uploads the script if it is missing.
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
	file := path.Join(s.dir, name+"-"+script.SHA256[:12]+script.Ext)
	if s.there[name] {
		return file, nil
	}
	const absent = 66
	// This removes partial uploads of engines that were killed; uploads in progress are younger.
	const look = `umask 077; mkdir -p -m 0700 -- "$1" || exit 1
find "$1" -maxdepth 1 -type f -regextype posix-extended -regex '.*/[a-z-]+-[0-9a-f]{12}\.(sh|pl)\.linus-[a-z2-7]{10}' -mmin +60 -delete || :
[ "$(sha256sum 2>/dev/null <"$2")" = "$3  -" ] || exit 66`
	err = s.host.Run(ctx, remote.Command{Name: "prepare " + s.dir, Line: remote.Quote("sh", "-c", look, "look", s.dir, file, script.SHA256)})
	if exit, ok := errors.AsType[*remote.ExitError](err); ok && exit.Code == absent {
		err = s.host.Upload(ctx, remote.File{Path: file, Data: script.Body, Mode: 0o700})
	}
	if err != nil {
		return "", err
	}
	s.there[name] = true
	return file, nil
}

// use calls work with the paths of the named scripts on the host, and once more if somebody has removed
// them since they were uploaded.
func (s *scripts) use(ctx context.Context, names []string, work func(files []string) error) error {
	for attempt := 1; ; attempt++ {
		files := make([]string, len(names))
		for i, name := range names {
			var err error
			if files[i], err = s.ensure(ctx, name); err != nil {
				return err
			}
		}
		err := work(files)
		var exit *remote.ExitError
		if !errors.As(err, &exit) || exit.Code != noScript || attempt == 2 {
			return err
		}
		s.turn <- struct{}{}
		for _, name := range names {
			delete(s.there, name)
		}
		<-s.turn
	}
}

// noScript is bash's exit code for a missing script.
const noScript = 127

// fencedExit is operation.sh's exit code for an engine that is fenced.
const fencedExit = 76

// outcomeClass maps LINUS_VM_OUTCOME to the error class of exit code 5.
var outcomeClass = map[string]job.HostClass{
	"exists": job.HostExists, "refused": job.HostLeftAlone, "foreign": job.HostForeign, "fenced": job.HostFenced,
}

func (p *Provider) scriptError(ctx context.Context, op string, res result.Result, err error) error {
	e := &job.HostError{Op: op, Host: p.o.Host.Login(), Text: res.Failure(), Remedy: res.Remedy()}
	var exit *remote.ExitError
	switch {
	case errors.As(err, &exit) && exit.HostClass() != "":
		e.Class = exit.HostClass()
		if named := outcomeClass[res.Get("LINUS_VM_OUTCOME")]; named != "" && e.Class == job.HostVM {
			e.Class = named
		}
		if res.Get("LINUS_RESTORE") == "unfit" {
			e.Class = job.HostUnfit
		}
	case exit != nil && exit.Code == fencedExit:
		e.Class = job.HostFenced
		e.Text = exit.Stderr
	case remote.ClassOf(err) != "", job.Exhausted(err), job.Unanswered(err):
		return p.hostError(ctx, op, err)
	case ctx.Err() != nil:
		e.Class = job.HostCancelled
		e.Text = "cancelled, and it is not known whether the script has undone its work: " + err.Error()
		e.Remedy = "linus checks again before it considers the VM gone; " + string(job.ListVMs) + " shows what is left"
	case killed(err):
		e.Class = job.HostUnreachable
		e.Remedy = "try again; if it persists, check the host's log for what ends it"
	case errors.Is(err, errGone):
		e.Class = job.HostInterrupted
	default:
		e.Class = job.HostVM
	}
	e.Text, e.Remedy = job.Bounded(term.Text(cmp.Or(e.Text, err.Error()))), job.Bounded(e.Remedy)
	if node := p.movedTo(res); node != "" {
		return &job.MovedError{Node: node, Err: e}
	}
	return e
}

// movedTo returns the node that now has the VM which a script was about, if that is another node with its
// own Provider.
func (p *Provider) movedTo(res result.Result) string {
	if node := res.Get("LINUS_VM_MOVED"); p.o.Member && nodeForm.MatchString(node) {
		return node
	}
	return ""
}

var remedies = map[remote.Class]string{
	remote.Refused:     "check PROXMOX_SSH_PORT, and that sshd runs on the host",
	remote.Unreachable: "check PROXMOX_HOST and the network between here and the host",
	remote.Timeout:     "check that the host is up and no firewall drops SSH (PROXMOX_HOST, PROXMOX_SSH_PORT)",
	remote.Lost:        "try again; if it persists, check sshd's log on the host",
	remote.Auth:        "check PROXMOX_SSH_USER and PROXMOX_SSH_KEY_PATH; the public key belongs in authorized_keys on the host",
	remote.HostKeyUnknown: "compare it with what `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` prints on the host, " +
		"then run `" + string(job.TrustHost) + "`",
	remote.HostKeyChanged: "if the host was reinstalled, remove its line from known_hosts (PROXMOX_KNOWN_HOSTS) and run `" + string(job.TrustHost) + "`; " +
		"if not, something stands between here and the host",
	remote.HostKeyRefused: "renew the host's certificate (ssh-keygen -s ... -h -n NAME), with the name in PROXMOX_HOST among its principals, " +
		"or correct the lines that begin with @ in known_hosts (PROXMOX_KNOWN_HOSTS)",
}

// failure returns a host error about an operation. remedy may be empty.
func (p *Provider) failure(op string, class job.HostClass, text, remedy string) *job.HostError {
	return &job.HostError{Op: op, Host: p.o.Host.Login(), Class: class, Text: text, Remedy: remedy}
}

func (p *Provider) hostError(ctx context.Context, op string, err error) error {
	fault := remote.ClassOf(err)
	if fault == "" && job.Unanswered(err) {
		fault = remote.Timeout
	}
	e := &job.HostError{Op: op, Host: p.o.Host.Login(), Class: fault.HostClass(), Text: term.Text(err.Error()), Remedy: remedies[fault], Own: job.Exhausted(err)}
	switch {
	case e.Own:
		e.Class, e.Remedy = job.HostUnreachable, job.ExhaustedRemedy
	case fault == remote.HostKeyChanged:
		e.Remedy = cmp.Or(p.o.KeyRemedy, e.Remedy)
	case e.Class != "":
	case ctx.Err() != nil:
		e.Class = job.HostCancelled
	default:
		e.Class = job.HostUnreachable
	}
	return e
}
