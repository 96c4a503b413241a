package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/lazyregexp"
)

func (a *app) vmCopyCommand() *cobra.Command {
	var show, force bool
	cmd := &cobra.Command{
		Use:   "cp SRC... DST",
		Short: "Copy files and directories to or from a VM",
		Long: "Copies through the engine: into a VM directories recursively and symbolic links as what they point to; out of it links inside a\n" +
			"copied directory stay links. Dangling links, sockets, pipes and devices are not copied; each is reported.\n" +
			"Out of a VM nothing is replaced here, and of a directory nothing is written that programs run in place (.envrc, .bashrc,\n" +
			".vscode), unless --force; .git never is: fetch from the VM with git.\n" +
			"A path in a VM is NAME:PATH, with the VM's name or ID, or the ID of a job that runs in it; a PATH without a leading /\n" +
			"is relative to its user's home. Write a local file with a colon in its name as ./NAME.\n" +
			"--print shows an scp command that logs in as linus vm ssh does, for programs that take one.",
		Example: "  linus vm cp ./src dev:/srv/app\n" +
			"  linus vm cp dev:/var/log/syslog dev:core .\n" +
			"  linus vm cp data.csv 01a1fcf5-c104-77fc-a46b-1716a403d4ed:",
		Args: func(cmd *cobra.Command, args []string) error {
			_, err := parseCopy(cmd, args)
			return err
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			copied, err := parseCopy(cmd, args)
			if err != nil {
				return err
			}
			return a.attached(func(ctx context.Context, s *session, _ []string) error {
				if show {
					return a.withLogin(ctx, s, copied.vm, show, copied.command)
				}
				return a.copyThrough(ctx, s, copied, force)
			})(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "out of a VM: replace existing files, and write those that programs run in place")
	cmd.Flags().BoolVar(&show, "print", false, "show an scp command that does it instead")
	return a.completePaths(cmd)
}

func (a *app) completePaths(cmd *cobra.Command) *cobra.Command {
	names := a.vmNames()
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		var words []string
		if !strings.ContainsAny(typed, "/:.") {
			all, _ := names(cmd, args, typed)
			for _, word := range all {
				name, about, _ := strings.Cut(word, "\t")
				words = append(words, name+":\t"+about)
			}
		}
		return words, cobra.ShellCompDirectiveNoSpace // without suggestions the shell completes files
	}
	return cmd
}

type copying struct {
	vm      string   // its name, its ID, or a job's ID
	toVM    bool     // false: from the VM
	sources []string // paths
	target  string   // path
}

// inVM matches NAME:PATH. A path with a slash before the colon is local.
var inVM = lazyregexp.New(`(?s)^([^/:]+):(.*)$`)

// parseCopy parses SRC... DST. Exactly one side is in a VM, with all its paths in the same VM.
func parseCopy(cmd *cobra.Command, args []string) (c copying, err error) {
	wrong := func(problem string) (copying, error) {
		return c, usage("%s %s; as in: linus vm cp ./x dev:/path, linus vm cp dev:/path .", cmd.CommandPath(), problem)
	}
	if len(args) < 2 {
		return wrong("takes one source or more, and a destination")
	}
	last := len(args) - 1
	c.sources, c.target = make([]string, last), args[last]
	if m := inVM.FindStringSubmatch(args[last]); m != nil {
		c.vm, c.target, c.toVM = m[1], m[2], true
	}
	for i, source := range args[:last] {
		m := inVM.FindStringSubmatch(source)
		switch {
		case m == nil && !c.toVM:
			return wrong("copies between a VM and this machine: give NAME:PATH on one side")
		case m == nil:
			c.sources[i] = source
		case c.toVM:
			return wrong("copies between a VM and this machine, not from VM to VM")
		case c.vm != "" && m[1] != c.vm:
			return wrong("copies from one VM at a time")
		default:
			c.vm, c.sources[i] = m[1], m[2]
		}
	}
	return c, nil
}

func (c copying) command(l daemon.Login) ([]string, error) {
	options, err := l.Options()
	if err != nil {
		return nil, err
	}
	host := l.VM.IP
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	there := func(path string) string { return l.VM.User + "@" + host + ":" + path }
	here := func(path string) string { return path } // never NAME:PATH, so scp takes it for a local path too
	source, target := here, there
	if !c.toVM {
		source, target = there, here
	}
	// -s: by SFTP, which takes paths literally; the old protocol lets a shell expand them.
	argv := append(append([]string{"scp", "-s", "-r"}, options...), "-P", strconv.Itoa(l.Config.VMSSHPort), "--")
	for _, path := range c.sources {
		argv = append(argv, source(path))
	}
	return append(argv, target(c.target)), nil
}

func (a *app) copyThrough(ctx context.Context, e job.Files, c copying, force bool) error {
	if c.toVM {
		return a.upload(ctx, e, c)
	}
	info, err := os.Stat(c.target)
	into := err == nil && info.IsDir()
	if !into && (len(c.sources) > 1 || strings.HasSuffix(c.target, "/")) {
		return fmt.Errorf("%s is not a directory", c.target)
	}
	for _, source := range c.sources {
		if err := a.download(ctx, e, job.FileRef{VM: c.vm, Path: source}, c.target, into, force); err != nil {
			return err
		}
	}
	return nil
}

// ownName returns the last part of a path, or "" if that is not a name: then the contents of the
// directory are meant.
func ownName(name string) string {
	base := path.Base(name)
	if base == "." || base == ".." || base == "/" {
		return ""
	}
	return base
}

// upload sends local sources to a VM, as one archive.
func (a *app) upload(ctx context.Context, e job.Files, c copying) error {
	page, err := e.ListFiles(ctx, job.FileList{VM: c.vm, Path: c.target, Limit: 1})
	if missing, ok := errors.AsType[*job.FieldError](err); err != nil && (!ok || missing.Field != "path") {
		return err // the problem is not that the path is missing
	}
	into := err == nil && page.Type == job.FileDirectory
	switch {
	case into:
	case len(c.sources) > 1, strings.HasSuffix(c.target, "/"):
		if err == nil {
			err = fmt.Errorf("%s is not a directory in the VM", c.target)
		}
		return err
	}
	to := job.FileRef{VM: c.vm, Path: c.target}
	if !into {
		to.Path = path.Dir(c.target)
	}
	from, archive := io.Pipe()
	packed, at := make(chan error, 1), "" // the last file that was begun
	begin := func(name string) { at = path.Join(to.Path, name) }
	go func() {
		w := tar.NewWriter(archive)
		err := func() error {
			for _, source := range c.sources {
				top := ownName(filepath.ToSlash(source))
				if !into {
					top = path.Base(c.target)
				}
				if err := a.pack(w, source, top, begin); err != nil {
					return err
				}
			}
			return w.Close()
		}()
		_ = archive.CloseWithError(err)
		packed <- err
	}()
	err = e.WriteTree(ctx, to, from)
	_ = from.Close()
	if wrong := <-packed; wrong != nil && !errors.Is(wrong, io.ErrClosedPipe) {
		err = wrong
	}
	if _, told := errors.AsType[*job.FieldError](err); err != nil && !told && at != "" {
		err = fmt.Errorf("%w; %s, or a file before it, may be in the VM in part", err, strconv.Quote(at))
	}
	return err
}

// pack adds a file or a directory to an archive, under the name top, and calls begin before each
// file's contents. Symbolic links are followed.
func (a *app) pack(w *tar.Writer, source, top string, begin func(name string)) error {
	parts, out, err := scanTree(source)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return errors.New(out[0])
	}
	for _, what := range out {
		a.note("left out: %s", what)
	}
	for _, p := range parts {
		name := path.Join(top, filepath.ToSlash(p.name))
		if p.dir {
			if name == "" {
				continue
			}
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(p.mode)}); err != nil {
				return fmt.Errorf("pack %s: %w", p.path, err)
			}
			continue
		}
		if err := packFile(w, p.path, name, begin); err != nil {
			return fmt.Errorf("pack %s: %w", p.path, err)
		}
	}
	return nil
}

func packFile(w *tar.Writer, local, name string, begin func(string)) error {
	file, err := os.Open(local)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // only read
	info, err := file.Stat()
	if err != nil {
		return err
	}
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), Size: info.Size(), ModTime: info.ModTime()})
	if err == nil {
		begin(name)
		_, err = io.CopyN(w, file, info.Size())
	}
	return err
}

type part struct {
	name string // in the tree; "" is the tree itself
	path string // absolute
	dir  bool
	mode fs.FileMode
}

// scanTree walks a source, including directories behind links. out says what cannot be copied, and
// why.
func scanTree(source string) (parts []part, out []string, err error) {
	root, err := filepath.Abs(source)
	if err != nil {
		return nil, nil, err
	}
	var visit func(name string, above []fs.FileInfo)
	visit = func(name string, above []fs.FileInfo) {
		path := filepath.Join(root, name)
		leave := func(why string) {
			out = append(out, fmt.Sprintf("%s %s", strconv.Quote(filepath.Join(source, name)), why))
		}
		link, err := os.Lstat(path)
		isLink := err == nil && link.Mode()&fs.ModeSymlink != 0
		info, err := os.Stat(path)
		switch {
		case err != nil && isLink:
			leave("is a dangling link")
		case err != nil || info.Mode().IsRegular(): // opening it reports why it cannot be read
			parts = append(parts, part{name: name, path: path})
		case !info.IsDir():
			leave("is not a file but a socket, pipe or device")
		case slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, info) }):
			leave("is a link to a directory that contains it")
		default:
			entries, err := os.ReadDir(path)
			if err != nil {
				parts = append(parts, part{name: name, path: path})
				return
			}
			parts = append(parts, part{name: name, path: path, dir: true, mode: info.Mode().Perm()})
			for _, e := range entries {
				visit(filepath.Join(name, e.Name()), append(slices.Clip(above), info))
			}
		}
	}
	visit("", nil)
	return parts, out, nil
}
