package sandbox

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
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
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"linus/internal/envd"
	"linus/internal/lazyregexp"
)

const (
	maxStep  = 1 << 20 // bytes of a step, without its archive
	maxLine  = 2000    // bytes of a line of output; longer lines are split
	maxFiles = 500_000 // of an archive
)

// Valid names of variables and users.
var (
	variable = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
	userName = lazyregexp.New(`^[a-z_][a-z0-9_-]{0,31}$`)
)

// postBuild runs a step of a template's build, and streams its output.
func (s *Server) postBuild(w http.ResponseWriter, r *http.Request) {
	from := bufio.NewReaderSize(r.Body, maxStep)
	line, err := from.ReadSlice('\n')
	var step envd.Step
	if err == nil {
		err = json.Unmarshal(line, &step)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("read the step: %w", err))
		return
	}
	control := http.NewResponseController(w)
	_ = control.EnableFullDuplex()
	defer r.Body.Close() //nolint:errcheck // else the rest of it is read while the next request comes
	w.Header().Set("Content-Type", "application/x-ndjson")
	_ = control.Flush() // the step may be silent for long
	b := &building{s: s, archive: from, say: func(said envd.Said) {
		_ = json.NewEncoder(w).Encode(said) // fails if the client is gone
		_ = control.Flush()
	}}
	if b.t = step.Template; b.t == nil {
		s.mu.Lock()
		t := s.template
		s.mu.Unlock()
		b.t = &t
	}
	end := envd.Said{Template: b.t}
	if err := b.do(r.Context(), step); err != nil {
		end = envd.Said{Error: fmt.Sprintf("%.*s", maxLine, err.Error())}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.say(end)
}

// building is a running step.
type building struct {
	s       *Server
	t       *envd.Template
	archive io.Reader
	mu      sync.Mutex
	say     func(envd.Said)
}

func (b *building) do(ctx context.Context, step envd.Step) error {
	arg := func(n int) string {
		if n < len(step.Args) {
			return step.Args[n]
		}
		return ""
	}
	if step.Type != "" && arg(0) == "" {
		return fmt.Errorf("%s: it needs an argument", step.Type)
	}
	switch step.Type {
	case "":
		return nil
	case "RUN":
		return b.run(ctx, cmp.Or(arg(1), b.t.User), arg(0))
	case "COPY":
		return b.copy(ctx, arg(0), arg(1), cmp.Or(arg(2), b.t.User), arg(3))
	case "ENV":
		return b.setEnv(step.Args)
	case "WORKDIR":
		a, err := b.s.account(b.t.User)
		if err == nil {
			b.t.Workdir = b.place(a, arg(0))
			err = a.mkdir(b.t.Workdir)
		}
		return err
	case "USER":
		if _, err := user.Lookup(arg(0)); err != nil {
			if !userName.MatchString(arg(0)) {
				return fmt.Errorf("USER: %.100q is not a user's name", arg(0))
			}
			if err := b.run(ctx, "root", "useradd --create-home --shell /bin/bash "+arg(0)); err != nil {
				return err
			}
		}
		b.t.User = arg(0)
		return nil
	}
	return fmt.Errorf("%.40s: there is no such step, only RUN, COPY, ENV, WORKDIR and USER", step.Type)
}

// place returns the absolute path of a step's path.
func (b *building) place(a account, name string) string {
	if !path.IsAbs(name) {
		name = path.Join(cmp.Or(b.t.Workdir, a.home), name)
	}
	return path.Clean(name)
}

func (b *building) run(ctx context.Context, name, command string) error {
	a, err := b.s.account(name)
	if err != nil {
		return err
	}
	stdout, stderr := &lines{b: b}, &lines{b: b, stderr: true}
	err = b.s.shell(ctx, a, *b.t, command, stdout, stderr)
	stdout.end()
	stderr.end()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("RUN %.200s: %s", command, exit)
	}
	return err
}

// lines sends each line that is written to it to the client.
type lines struct {
	b      *building
	stderr bool
	begun  []byte
}

func (l *lines) Write(data []byte) (int, error) {
	l.begun = append(l.begun, data...)
	for {
		at := bytes.IndexAny(l.begun, "\r\n")
		next := at + 1
		if at < 0 && len(l.begun) > maxLine {
			at, next = maxLine, maxLine
		}
		if at < 0 {
			return len(data), nil
		}
		l.tell(l.begun[:at])
		l.begun = l.begun[next:]
	}
}

func (l *lines) end() { l.tell(l.begun) }

func (l *lines) tell(line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.b.say(envd.Said{Text: string(line[:min(len(line), maxLine)]), Stderr: l.stderr})
}

// setEnv sets pairs of variables. Values may refer to other variables, as $NAME.
func (b *building) setEnv(pairs []string) error {
	env := map[string]string{}
	maps.Copy(env, b.t.Env)
	b.t.Env = env
	a, err := b.s.account(b.t.User)
	if err != nil {
		return err
	}
	for at := 0; at < len(pairs); at += 2 {
		if at+1 == len(pairs) || !variable.MatchString(pairs[at]) || strings.ContainsRune(pairs[at+1], 0) {
			return fmt.Errorf("ENV: %.100q is not a variable's name, or has no value", pairs[at])
		}
		known := map[string]string{}
		for _, pair := range b.s.environment(a, env) {
			name, value, _ := strings.Cut(pair, "=")
			known[name] = value
		}
		env[pairs[at]] = os.Expand(pairs[at+1], func(name string) string { return known[name] })
	}
	return nil
}

// owner returns the owner of copied files: a user, or a user and a group, as USER:GROUP.
func (b *building) owner(text string) (a account, err error) {
	name, group, both := strings.Cut(text, ":")
	if a, err = b.s.account(name); err != nil || !both || group == "" {
		return a, err
	}
	id := group
	if g, err := user.LookupGroup(group); err == nil {
		id = g.Gid
	}
	gid, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return a, fmt.Errorf("COPY: %.100q is not a group", group)
	}
	a.gid = uint32(gid)
	return a, nil
}

// copy extracts what an archive has of a path in the client's directory to a path in the VM. The
// content of a directory goes into the target. A file becomes the target, or goes into it if the
// target is a directory or ends with /.
func (b *building) copy(ctx context.Context, from, to, owner, mode string) error {
	a, err := b.owner(owner)
	if err != nil {
		return err
	}
	var perm uint64
	if mode != "" {
		if perm, err = strconv.ParseUint(mode, 8, 12); err != nil {
			return fmt.Errorf("COPY: %.20q is not a mode", mode)
		}
	}
	base := "."
	for _, part := range strings.Split(path.Clean(from), "/") {
		if strings.ContainsAny(part, `*?[]{}!()\`) { // a pattern, which the client has already applied
			break
		}
		base = path.Join(base, part)
	}
	c := copying{account: a, base: base, to: b.place(a, to), into: strings.HasSuffix(to, "/"), perm: fs.FileMode(perm)}
	if info, err := os.Stat(c.to); err == nil && info.IsDir() {
		c.into = true
	}
	in := bufio.NewReader(b.archive)
	var raw io.Reader = in
	if magic, _ := in.Peek(2); string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("COPY: read the archive: %w", err)
		}
		raw = z
	}
	archive := tar.NewReader(raw)
	for n := 0; ; n++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return c.close()
		case err != nil:
			err = fmt.Errorf("read the archive: %w", err)
		case n == maxFiles:
			err = fmt.Errorf("the archive has more than %d files", maxFiles)
		case ctx.Err() != nil:
			err = ctx.Err()
		default:
			err = c.put(h, archive)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("COPY: %w", err), c.close())
		}
	}
}

// copying is an archive that is being extracted.
type copying struct {
	account

	base string // path in the archive that is copied
	to   string
	into bool
	perm fs.FileMode // zero: as in the archive

	root *os.Root // nothing is written outside of this directory
}

func (c *copying) close() error {
	if c.root == nil {
		return nil
	}
	return c.root.Close()
}

// put extracts an entry of the archive.
func (c *copying) put(h *tar.Header, body io.Reader) error {
	name, ok := c.inside(h.Name)
	if !ok {
		return fmt.Errorf("%.200q is not in %s", h.Name, c.base)
	}
	dir, as := c.to, ""
	if name == "." && h.Typeflag != tar.TypeDir { // base itself is a file
		if as = path.Base(c.base); !c.into {
			dir, as = path.Split(c.to)
		}
		name = as
	}
	if c.root == nil {
		err := c.mkdir(dir)
		if err == nil {
			c.root, err = os.OpenRoot(dir)
		}
		if err != nil {
			return err
		}
	}
	if err := c.parents(path.Dir(name)); err != nil {
		return err
	}
	perm := cmp.Or(c.perm, fs.FileMode(h.Mode).Perm()) //nolint:gosec // its bits alone
	switch h.Typeflag {
	case tar.TypeDir:
		if err := c.parents(name); err != nil || name == "." {
			return err
		}
		return c.root.Chmod(name, perm)
	case tar.TypeReg:
		return c.write(name, perm, body)
	case tar.TypeSymlink, tar.TypeLink:
		if err := c.remove(name); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeLink {
			target, ok := c.inside(h.Linkname)
			if !ok {
				return fmt.Errorf("%.200q is a link to something outside %s", h.Name, c.base)
			}
			return c.root.Link(target, name)
		}
		if err := c.root.Symlink(h.Linkname, name); err != nil {
			return err
		}
		return c.root.Lchown(name, int(c.uid), int(c.gid))
	}
	return fmt.Errorf("%.200q is neither a file, a directory nor a link", h.Name)
}

// inside returns an archive's name relative to base; false: it is outside.
func (c *copying) inside(name string) (string, bool) {
	name = path.Clean(name)
	if !filepath.IsLocal(name) {
		return "", false
	}
	rel, err := filepath.Rel(c.base, name)
	return rel, err == nil && filepath.IsLocal(rel)
}

// parents makes a directory and its parents, owned by the account.
func (c *copying) parents(dir string) error {
	info, err := c.root.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is a file already", path.Join(c.to, dir))
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := c.parents(path.Dir(dir)); err != nil {
		return err
	}
	if err := c.root.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return c.root.Lchown(dir, int(c.uid), int(c.gid))
}

// remove removes what is in the place of a new file.
func (c *copying) remove(name string) error {
	if err := c.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (c *copying) write(name string, perm fs.FileMode, body io.Reader) error {
	if err := c.remove(name); err != nil {
		return err
	}
	f, err := c.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, body); err == nil {
		err = f.Chown(int(c.uid), int(c.gid))
	}
	if err == nil {
		err = f.Chmod(perm)
	}
	return errors.Join(err, f.Close())
}
