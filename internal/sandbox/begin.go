package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"syscall"
	"time"

	"linus/internal/envd"
	"linus/internal/sandbox/rpc"
)

// What a sandbox begins with: the settings of its template, those of /init, and the command that
// runs in all sandboxes of the template. The template's file is part of the template. The other
// files are in linus's own directories in a VM, which no template contains.
const (
	templateFile = "etc/linus-sandbox.json"
	stateFile    = "var/lib/linus/sandbox/state.json"
	startedFile  = "run/linus-sandbox/started" // gone after a boot

	maxInit   = 1 << 20
	readyTime = 10 * time.Minute // for a start command
	readyWait = time.Second      // between two runs of the ready command
	startTag  = "start_cmd"
)

// given adds the variables of the template and of /init.
func (s *Server) given(env map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(env, s.template.Env)
	maps.Copy(env, s.env)
}

// readTemplate returns the settings of a VM's template; empty: it was not built for sandboxes.
func readTemplate(root string) (t envd.Template) {
	if data, err := os.ReadFile(filepath.Join(root, templateFile)); root != "" && err == nil {
		_ = json.Unmarshal(data, &t)
	}
	return t
}

// keep writes a file that survives a boot, unless Options.Root is empty.
func (s *Server) keep(name string, value any) error {
	if s.options.Root == "" {
		return nil
	}
	path := filepath.Join(s.options.Root, name)
	data, err := json.Marshal(value)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // what is secret in it is the file's
	}
	if err == nil {
		err = os.WriteFile(path+".new", data, 0o600)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return err
}

func (s *Server) postInit(w http.ResponseWriter, r *http.Request) error {
	var init envd.Init
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInit)).Decode(&init); err != nil {
		return bad("read what /init is given: %w", err)
	}
	err := s.initialize(init)
	if err == nil {
		err = s.begin(r.Context())
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

func (s *Server) initialize(init envd.Init) error {
	if t := init.Template; t != nil {
		if _, err := user.Lookup(t.User); t.User != "" && err != nil {
			return bad("template: user: %w", err)
		}
		if err := s.keep(templateFile, t); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if init.Template != nil {
		s.template = *init.Template
	}
	if init.EnvVars != nil {
		s.env = init.EnvVars
	}
	if len(init.Change) > 0 {
		all := map[string]string{}
		maps.Copy(all, s.env)
		maps.Copy(all, init.Change)
		maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
		s.env = all
	}
	return s.keep(stateFile, s.env)
}

// wasBegun reports whether the sandbox began before this program did, and reads its settings.
func (s *Server) wasBegun() bool {
	data, err := os.ReadFile(filepath.Join(s.options.Root, stateFile))
	if s.options.Root == "" || err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.Unmarshal(data, &s.env)
	return true
}

// begin starts the template's command, once per boot, and waits until its ready command succeeds.
func (s *Server) begin(ctx context.Context) error {
	s.mu.Lock()
	t := s.template
	s.mu.Unlock()
	if t.Start == "" && t.Ready == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	select {
	case s.starting <- struct{}{}:
		defer func() { <-s.starting }()
	case <-ctx.Done():
		return ctx.Err()
	}
	a, err := s.account("")
	if err != nil {
		return err
	}
	if t.Start != "" {
		if err := s.launch(ctx, a, t.Start); err != nil {
			return fmt.Errorf("start command: %w", err)
		}
	}
	return s.ready(ctx, a, t)
}

// launch starts the command, unless it was already started since the boot.
func (s *Server) launch(ctx context.Context, a account, command string) error {
	if s.started != nil {
		return nil
	}
	if s.options.Root != "" {
		f, err := os.OpenFile(filepath.Join(s.options.Root, startedFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		if err != nil {
			return err
		}
		_ = f.Close()
	}
	tag, stdin := startTag, false
	p, l, err := s.start(context.WithoutCancel(ctx), a, &rpc.StartRequest{
		Process: &rpc.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-l", "-c", command}}, Tag: &tag, Stdin: &stdin,
	})
	if err != nil {
		return err
	}
	p.leave(l)
	s.started = p
	return nil
}

// ready waits until the ready command succeeds. It fails if the start command has failed.
func (s *Server) ready(ctx context.Context, a account, t envd.Template) error {
	again := time.NewTicker(readyWait)
	defer again.Stop()
	for t.Ready != "" {
		err := s.shell(ctx, a, t, t.Ready, nil, nil)
		if err == nil {
			return nil
		}
		if p := s.started; p != nil {
			select {
			case <-p.ended:
				if p.end.GetExitCode() != 0 {
					return bad("start command: it has ended with %s", p.end.GetStatus())
				}
			default:
			}
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return bad("ready command: %w", err)
		}
	}
	return nil
}

// shell runs a command of a template's build as a user, until the command or ctx ends.
func (s *Server) shell(ctx context.Context, a account, t envd.Template, command string, stdout, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, "/bin/bash", "-l", "-c", command)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = t.Workdir, s.environment(a, t.Env), a.process()
	if cmd.Dir == "" {
		cmd.Dir = a.home
	}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = stdout, stderr, drain
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // a process that it has left behind holds its output open
		return nil
	}
	return err
}
