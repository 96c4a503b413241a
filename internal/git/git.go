// Package git owns the repositories of jobs on the engine's side: it fetches them for their VMs, checks
// what comes back, and pushes it. Git does all the work, in one directory per job, without a work tree,
// hooks or foreign settings. The transport adds the credential, which git never sees. Both the server and
// the VM are hostile. The package knows no VM, no store and no policy.
package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"linus/internal/capped"
	"linus/internal/job"
	"linus/internal/term"
)

// Options of a Git. Dir and Transport are required.
type Options struct {
	Dir string // of the jobs' repositories, one directory for each job
	// Transport returns how a repository is reached. It calls used with each use of its credential.
	Transport func(ctx context.Context, r job.Repository, used func(job.CredentialUse)) (Transport, error)

	MaxBytes int64         // of a repository, as it is fetched; 0: 1 GiB
	Fetching time.Duration // how long fetching one may take; 0: 15 min
	Pushing  time.Duration // the same for checking or pushing; 0: 5 min
	Log      *slog.Logger
}

// Git has the repositories of jobs. Its methods are safe for concurrent use, except for the same job. To bound
// memory, only so many calls run at once: atServers that talk to servers, which may be slow, and atHome others.
type Git struct {
	o         Options
	far, near chan struct{}
}

const (
	atServers = 8
	atHome    = 2
	memory    = 256 << 20 // bytes for each git, and for each program it starts
	tries     = 2         // of a call during which the engine dies
)

// New returns a Git. It removes directories unused for days, whose engines were killed.
func New(o Options) *Git {
	o.MaxBytes = cmp.Or(o.MaxBytes, 1<<30)
	o.Fetching, o.Pushing = cmp.Or(o.Fetching, 15*time.Minute), cmp.Or(o.Pushing, 5*time.Minute)
	o.Log = cmp.Or(o.Log, slog.Default())
	all, _ := os.ReadDir(o.Dir)
	for _, entry := range all {
		if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > forgotten {
			_ = os.RemoveAll(filepath.Join(o.Dir, entry.Name()))
		}
	}
	return &Git{o, make(chan struct{}, atServers), make(chan struct{}, atHome)}
}

// begin waits for the call's turn. It refuses calls during which the engine has died before, since it
// might die of the next one, too. The caller calls done.
func (g *Git) begin(ctx context.Context, turn chan struct{}, id string) (done func(), err error) {
	name := g.dir(id) + ".tries" // outside the directory, which a new fetch removes
	tried, err := os.ReadFile(name)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case len(tried) >= tries:
		return nil, fmt.Errorf("it was tried %d times, and the engine ended in the middle of it: it is not tried again", len(tried))
	}
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if err := errors.Join(os.MkdirAll(g.o.Dir, 0o700), os.WriteFile(name, append(tried, '.'), 0o600)); err != nil {
		<-turn
		return nil, err
	}
	return func() {
		_ = os.Remove(name) // the call has ended, and the engine is alive
		<-turn
	}, nil
}

// forgotten is longer than any job takes.
const forgotten = 7 * 24 * time.Hour

// Ready returns why this machine cannot fetch a repository, or nil if it can.
func (g *Git) Ready(r job.Repository) error {
	tools := []string{"git"}
	if at, err := r.Where(); err == nil && at.SSH {
		tools = append(tools, "ssh")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			return &job.FieldError{Field: "manifest.repository", Problem: "needs " + tool + " on the engine's machine, and it is not there", Remedy: "install it there", Fault: job.FaultState}
		}
	}
	return nil
}

func (g *Git) dir(id string) string { return filepath.Join(g.o.Dir, id) }

// Forget removes a job's repository.
func (g *Git) Forget(id string) {
	_ = os.Remove(g.dir(id) + ".tries")
	g.clear(id)
}

func (g *Git) clear(id string) {
	if err := os.RemoveAll(g.dir(id)); err != nil {
		g.o.Log.Warn("a job's repository stays on the disk", "job_id", id, "err", err)
	}
}

// Has reports whether a job's repository was fetched here.
func (g *Git) Has(id string) bool {
	_, err := os.Stat(filepath.Join(g.dir(id), archiveName))
	return err == nil
}

// settings are those of every call. Only this package writes a repository's own config.
var settings = []string{
	"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.askPass=", "credential.helper=",
	"core.bigFileThreshold=4m", "core.deltaBaseCacheLimit=32m", "core.packedGitWindowSize=32m", "core.packedGitLimit=512m", "pack.threads=2", // to fit git's memory limit
	"gc.auto=0", "maintenance.auto=false", "submodule.recurse=false", "fetch.recurseSubmodules=false", "push.recurseSubmodules=no",
	"fetch.unpackLimit=1", "transfer.unpackLimit=1", "fetch.writeCommitGraph=false", "protocol.version=2", "http.followRedirects=false", "http.proxyAuthMethod=basic",
	"http.lowSpeedLimit=100", "http.lowSpeedTime=120", "advice.detachedHead=false", "push.gpgSign=false", "core.quotePath=true",
}

const maxAnswer = 4 << 20 // bytes of git's output

// bounds limits git and the programs it starts: no core dumps, the size of each file, and memory (on old
// kernels only address space). It also makes git the first to be killed if the cgroup is out of memory,
// rather than the engine.
const bounds = `ulimit -c 0; ulimit -f "$1"; ulimit -d "$2" 2>/dev/null; ulimit -v 2097152 2>/dev/null
{ echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; shift 2; exec "$@"`

type failure struct {
	verb, why string
	code      int // its exit code; -1: it was killed
}

func (f *failure) Error() string { return "git " + f.verb + ": " + f.why }

// git runs git in a repository, over w if it needs a server, and returns its output. Its time (ctx),
// output, memory and the size of each file it writes are bounded.
func (g *Git) git(ctx context.Context, repository string, w *opened, stdin *os.File, args ...string) (string, error) {
	program, err := exec.LookPath("git") // the one that Ready finds, whatever PATH git gets
	if err != nil {
		return "", err
	}
	line := []string{"-c", bounds, "sh", strconv.FormatInt(g.o.MaxBytes/512, 10), strconv.Itoa(memory >> 10), program}
	for _, setting := range settings {
		line = append(line, "-c", setting)
	}
	if repository != "" {
		line = append(line, "--git-dir="+repository)
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", append(line, args...)...)
	cmd.Dir = g.o.Dir
	cmd.Env = append([]string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + g.o.Dir, "LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_ATTR_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "GIT_NO_REPLACE_OBJECTS=1",
		"GIT_CEILING_DIRECTORIES=" + g.o.Dir, "GIT_ALLOW_PROTOCOL=" + w.protocol(),
	}, w.environment()...)
	out, said := &capped.Writer{Most: maxAnswer}, &capped.Writer{Most: 64 << 10}
	cmd.Stdout, cmd.Stderr = out, said
	if stdin != nil {
		cmd.Stdin = stdin
	}
	cmd.WaitDelay = 5 * time.Second
	together(cmd)
	err = cmd.Run()
	switch {
	case err == nil && out.Cut():
		return "", fmt.Errorf("git %s: its answer is longer than %d bytes", args[0], maxAnswer)
	case err == nil:
		return string(out.Bytes()), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("git %s: %w", args[0], context.Cause(ctx))
	}
	exit := new(exec.ExitError)
	if !errors.As(err, &exit) {
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	why := w.refusal()
	if why == "" {
		why = lastWords(string(said.Bytes()))
	}
	return "", &failure{args[0], cmp.Or(why, err.Error()), exit.ExitCode()}
}

// lastWords returns the end of git's messages, which names the cause, as one line.
func lastWords(said string) string {
	text := strings.Join(strings.Fields(term.Text(said)), " ")
	if strings.Contains(text, "could not read Username") {
		return "the server requires a login, or does not accept the credential"
	}
	if strings.Contains(text, "Out of memory") || strings.Contains(text, "out of memory") {
		text += fmt.Sprintf(": it may have %d MiB here", memory>>20)
	}
	if r := []rune(text); len(r) > 500 {
		return "..." + string(r[len(r)-500:])
	}
	return text
}

// fits returns an error if a repository, with all that was fetched for it, is too large.
func (g *Git) fits(at string) error {
	size, err := sizeOf(at)
	if err == nil && size > g.o.MaxBytes {
		err = fmt.Errorf("it is %d bytes, the limit is %d", size, g.o.MaxBytes)
	}
	return err
}

// sizeOf returns the total size of the files below a directory, in bytes.
func sizeOf(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}
