package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/vm"
)

// What a VM may send in one call, in bytes, in addition to requested file content: answers, and the
// entries of a directory.
const (
	answers       = 1 << 20
	maxDirectory  = 32 << 20
	maxLinks      = 20 // symbolic links in a row
	maxPathLength = 4096
)

// StatFile describes the file that a path leads to.
func (g *Guest) StatFile(ctx context.Context, v vm.VM, name string) (info job.FileInfo, err error) {
	err = g.inWorkspace(ctx, "look at a file of", v, name, answers, true, func(_ context.Context, _ *workspace, files *remote.FileSystem, at string) error {
		there, err := files.Stat(at)
		if err != nil {
			return pathError(name, err)
		}
		info = describe(there)
		info.SetName(path.Base(name))
		return nil
	})
	return info, err
}

// ListFiles implements job.Files.
func (g *Guest) ListFiles(ctx context.Context, v vm.VM, q job.FileList) (page job.FilePage, err error) {
	err = g.inWorkspace(ctx, "list files of", v, q.Path, maxDirectory, true, func(ctx context.Context, _ *workspace, files *remote.FileSystem, at string) error {
		there, err := files.Stat(at)
		if errors.Is(err, fs.ErrNotExist) { // it may be a dangling link
			there, err = files.Lstat(at)
		}
		if err != nil {
			return pathError(q.Path, err)
		}
		if !there.IsDir() {
			one := describe(there)
			one.SetName(path.Base(q.Path))
			page = job.FilePage{Type: one.Type, Entries: []job.FileInfo{one}, Total: 1}
			return nil
		}
		entries, err := files.ReadDir(ctx, at)
		if err != nil {
			return pathError(q.Path, err)
		}
		page = pageOf(entries, q)
		return nil
	})
	if errors.Is(err, remote.ErrTooMuch) {
		return page, pathProblem(q.Path, "has more entries than can be listed", "use a command in the VM, such as find")
	}
	return page, err
}

// pageOf returns the requested part of a directory.
func pageOf(entries []remote.Entry, q job.FileList) job.FilePage {
	slices.SortFunc(entries, func(a, b remote.Entry) int { return strings.Compare(a.Name(), b.Name()) })
	page := job.FilePage{Type: job.FileDirectory, Total: len(entries), Entries: []job.FileInfo{}}
	from := min(q.Offset, len(entries))
	to := min(from+q.Limit, len(entries))
	for _, e := range entries[from:to] {
		page.Entries = append(page.Entries, describe(e))
	}
	if to < len(entries) {
		page.Next = to
	}
	return page
}

// describe returns what a VM says about a file.
func describe(e remote.Entry) job.FileInfo {
	info := job.FileInfo{Type: job.FileOther, Size: max(0, e.Size()), Mode: modeText(e), UID: e.UID, GID: e.GID, ModTime: e.ModTime().UTC()}
	switch mode := e.Mode(); {
	case mode.IsRegular():
		info.Type = job.FileRegular
	case mode.IsDir():
		info.Type = job.FileDirectory
	case mode&fs.ModeSymlink != 0:
		info.Type = job.FileSymlink
	}
	info.SetName(e.Name())
	return info
}

func modeText(e remote.Entry) string { return fmt.Sprintf("%04o", e.Mode().Perm()) }

// ReadFile implements job.Files.
func (g *Guest) ReadFile(ctx context.Context, v vm.VM, r job.FileRange) (chunk job.FileChunk, err error) {
	err = g.inWorkspace(ctx, "read a file of", v, r.Path, r.Limit+r.Limit/8+answers, true, func(_ context.Context, _ *workspace, files *remote.FileSystem, at string) error {
		if err := regular(files, at, r.Path); err != nil {
			return err
		}
		data, end, about, err := files.Read(at, r.Offset, r.Limit)
		if err != nil {
			return pathError(r.Path, err)
		}
		chunk = job.FileChunk{Data: data, Next: r.Offset + int64(len(data)), End: end, Size: max(0, about.Size()), Mode: modeText(about)}
		return nil
	})
	return chunk, err
}

// WriteFile implements job.Files.
func (g *Guest) WriteFile(ctx context.Context, v vm.VM, w job.FileWrite) (written job.FileWritten, err error) {
	err = g.inWorkspace(ctx, "write a file of", v, w.Path, answers, true, func(ctx context.Context, ws *workspace, files *remote.FileSystem, at string) error {
		target, release, err := ws.take(ctx, files, at, w.Path)
		if err != nil {
			return err
		}
		defer release()
		before, err := files.Stat(target)
		created := errors.Is(err, fs.ErrNotExist)
		if !created {
			err = usable(before, err, w.Path)
		}
		if err == nil && w.New {
			return isThere(w.Path)
		}
		if created && w.Parents {
			err = pathError(path.Dir(w.Path), files.MkdirAll(path.Dir(target)))
		} else if created {
			err = parent(files, target, w.Path)
		}
		if err != nil {
			return err
		}
		file := remote.File{Path: target, Data: w.Data, Mode: 0o644}
		was := &before
		if created {
			was = nil
		} else {
			file.Mode = before.Mode().Perm()
		}
		if w.Mode != "" {
			mode, err := strconv.ParseUint(w.Mode, 8, 32)
			if err != nil { // the executor has validated it
				return err
			}
			file.Mode = fs.FileMode(mode)
		}
		err = files.Replace(ctx, file, was, func() error {
			if _, err := files.Lstat(target); w.New && err == nil { // it was created meanwhile
				return isThere(w.Path)
			}
			return nil
		})
		if err != nil {
			return pathError(w.Path, err)
		}
		written = job.FileWritten{Created: created, Size: int64(len(w.Data)), Mode: fmt.Sprintf("%04o", file.Mode)}
		return nil
	})
	return written, err
}

// EditFile implements job.Files. It is not repeated after a lost connection, because the edit may
// have been made.
func (g *Guest) EditFile(ctx context.Context, v vm.VM, e job.FileEdit) (edited job.FileEdited, err error) {
	const budget = job.MaxFileWrite + job.MaxFileWrite/8 + answers
	err = g.inWorkspace(ctx, "edit a file of", v, e.Path, budget, false, func(ctx context.Context, ws *workspace, files *remote.FileSystem, at string) error {
		target, release, err := ws.take(ctx, files, at, e.Path)
		if err != nil {
			return err
		}
		defer release()
		if err := regular(files, target, e.Path); err != nil {
			return err
		}
		data, end, before, err := files.Read(target, 0, job.MaxFileWrite)
		if err != nil {
			return pathError(e.Path, err)
		}
		if !end {
			return pathProblem(e.Path, fmt.Sprintf("is larger than %d bytes, which is the most that is edited", job.MaxFileWrite), "use a command in the VM, such as sed")
		}
		var content string
		if content, edited, err = replaced(string(data), e); err != nil {
			return err
		}
		err = files.Replace(ctx, remote.File{Path: target, Data: []byte(content), Mode: before.Mode().Perm()}, &before, func() error {
			now, err := files.Lstat(target)
			if err == nil && (now.Size() != before.Size() || !now.ModTime().Equal(before.ModTime())) {
				err = pathProblem(e.Path, "has changed meanwhile; it was left as it is", "read it and edit it again")
			}
			return err
		})
		return pathError(e.Path, err)
	})
	return edited, err
}

func replaced(content string, e job.FileEdit) (string, job.FileEdited, error) {
	n := strings.Count(content, e.Old)
	switch {
	case n == 0:
		return "", job.FileEdited{}, &job.FieldError{Field: "old", Problem: fmt.Sprintf("is not in %q: 0 matches", e.Path), Remedy: "read the file: blanks, tabs and line ends count"}
	case n > 1 && !e.All:
		return "", job.FileEdited{}, &job.FieldError{Field: "old", Problem: fmt.Sprintf("is %d times in %q", n, e.Path), Remedy: "add text around it until there is one match, or replace all"}
	}
	size := int64(len(content)) + int64(n)*int64(len(e.New)-len(e.Old))
	if size > job.MaxFileWrite {
		return "", job.FileEdited{}, &job.FieldError{Field: "new", Problem: fmt.Sprintf("would make the file %d bytes, the limit is %d", size, job.MaxFileWrite), Remedy: "use a command in the VM, such as sed"}
	}
	line := 1 + strings.Count(content[:strings.Index(content, e.Old)], "\n")
	return strings.ReplaceAll(content, e.Old, e.New), job.FileEdited{Replaced: n, Line: line, Size: size}, nil
}

// at returns a path in the VM's file system.
func (g *Guest) at(name string) (string, error) {
	switch {
	case len(name) > maxPathLength:
		return "", pathProblem(name[:100]+"...", fmt.Sprintf("is longer than %d bytes", maxPathLength), "give a shorter one")
	case slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return len(part) > job.MaxFileName }):
		return "", pathProblem(name[:min(len(name), 100)]+"...", fmt.Sprintf("has a name in it that is longer than %d bytes", job.MaxFileName), "give a shorter one")
	case strings.ContainsRune(name, 0):
		return "", pathProblem(name, "contains a NUL", "file names cannot contain one")
	case name == "":
		return ".", nil
	case path.IsAbs(name):
		return g.o.Root + name, nil
	}
	return name, nil
}

// take waits until nobody else is changing a file of the VM, and blocks others until release is
// called. target is the file that the path leads to.
func (ws *workspace) take(ctx context.Context, files *remote.FileSystem, at, name string) (target string, release func(), err error) {
	select {
	case ws.edits <- struct{}{}:
	case <-ctx.Done():
		return "", nil, context.Cause(ctx)
	}
	release = func() { <-ws.edits }
	if target, err = follow(files, at, name); err != nil {
		release()
	}
	return target, release, err
}

// follow resolves symbolic links, so that a link stays a link when its target is replaced.
func follow(files *remote.FileSystem, at, name string) (string, error) {
	for range maxLinks {
		there, err := files.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			return at, nil
		}
		if err != nil {
			return "", pathError(name, err)
		}
		if there.Mode()&fs.ModeSymlink == 0 {
			return at, nil
		}
		link, err := files.ReadLink(at)
		if err != nil {
			return "", pathError(name, err)
		}
		if !path.IsAbs(link) {
			link = path.Dir(at) + "/" + link // not cleaned: if a is a link, a/.. is another place
		}
		at = link
	}
	return "", pathProblem(name, "leads through too many symbolic links", "give the file itself")
}

// regular returns an error unless the path leads to a file that can be read and replaced. Others
// are not even opened, because that may never return.
func regular(files *remote.FileSystem, at, name string) error {
	there, err := files.Stat(at)
	return usable(there, err, name)
}

func usable(there remote.Entry, err error, name string) error {
	switch {
	case err != nil:
		return pathError(name, err)
	case there.IsDir():
		return pathProblem(name, "is a directory", "give a file")
	case !there.Mode().IsRegular():
		return pathError(name, fs.ErrInvalid)
	}
	return nil
}

// parent checks that a new file's directory exists.
func parent(files *remote.FileSystem, target, name string) error {
	there, err := files.Stat(path.Dir(target))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return pathProblem(path.Dir(name), "does not exist", "create it, or have missing directories created")
	case err != nil:
		return pathError(path.Dir(name), err)
	case !there.IsDir():
		return pathProblem(path.Dir(name), "is not a directory", "give another path")
	}
	return nil
}

func isThere(name string) *job.FieldError {
	return &job.FieldError{Field: "new", Problem: fmt.Sprintf("%q exists already; it was left as it is", name), Remedy: "give another path, or have it replaced"}
}

func pathProblem(name, problem, remedy string) *job.FieldError {
	return &job.FieldError{Field: "path", Problem: fmt.Sprintf("%q %s", name, problem), Remedy: remedy}
}

// pathError turns SFTP errors about the path into a *job.FieldError. Other errors are returned unchanged.
func pathError(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return pathProblem(name, "does not exist", "list its directory")
	case errors.Is(err, fs.ErrPermission):
		return pathProblem(name, "permission denied to the VM's SSH user", "use a command with sudo in the VM")
	case errors.Is(err, fs.ErrInvalid):
		return pathProblem(name, "is not a regular file", "use a command in the VM to read a device or a pipe")
	case errors.Is(err, remote.ErrOwner):
		return pathProblem(name, "belongs to another user, which a change would alter", "use a command with sudo in the VM")
	}
	return err
}
