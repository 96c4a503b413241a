package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"linus/internal/sandbox/rpc"
)

// resolve returns a call's user, and the absolute path that it means.
func (s *Server) resolve(ctx context.Context, path string) (account, string, error) {
	a, err := s.caller(ctx)
	if err != nil {
		return a, "", err
	}
	if path, err = s.path(a, path); err != nil {
		return a, "", connect.NewError(connect.CodeInvalidArgument, err)
	}
	return a, path, nil
}

// fault gives a system error its code.
func fault(doing string, err error) error {
	code := connect.CodeInternal
	for _, c := range []struct {
		errs []error
		code connect.Code
	}{
		{[]error{fs.ErrNotExist}, connect.CodeNotFound},
		{[]error{fs.ErrExist, syscall.ENOTEMPTY}, connect.CodeAlreadyExists},
		{[]error{fs.ErrPermission, syscall.EROFS}, connect.CodePermissionDenied},
		{[]error{syscall.ENOTDIR, syscall.EISDIR, syscall.EINVAL, syscall.ENAMETOOLONG, syscall.E2BIG}, connect.CodeInvalidArgument},
		{[]error{syscall.ELOOP, syscall.EBUSY}, connect.CodeFailedPrecondition},
		{[]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM}, connect.CodeResourceExhausted},
	} {
		if slices.ContainsFunc(c.errs, func(target error) bool { return errors.Is(err, target) }) {
			code = c.code
			break
		}
	}
	return connect.NewError(code, fmt.Errorf("%s: %w", doing, err))
}

// Stat describes what is at a path.
func (s *Server) Stat(ctx context.Context, req *rpc.StatRequest) (*rpc.StatResponse, error) {
	_, path, err := s.resolve(ctx, req.GetPath())
	if err != nil {
		return nil, err
	}
	entry, err := names{}.entry(path)
	if errors.Is(err, syscall.ENOTDIR) { // a parent is a file, so the path does not exist
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("find file: %w", err))
	}
	if err != nil {
		return nil, fault("find file", err)
	}
	return &rpc.StatResponse{Entry: entry}, nil
}

// MakeDir makes a directory and its parents.
func (s *Server) MakeDir(ctx context.Context, req *rpc.MakeDirRequest) (*rpc.MakeDirResponse, error) {
	a, path, err := s.resolve(ctx, req.GetPath())
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil {
		if info.IsDir() {
			return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", path))
		}
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path already exists but it is not a directory: %s", path))
	}
	if err := a.mkdir(path); err != nil {
		return nil, fault("make directory", err)
	}
	entry, err := names{}.entry(path)
	if err != nil {
		return nil, fault("find directory", err)
	}
	return &rpc.MakeDirResponse{Entry: entry}, nil
}

// Move renames a file or directory.
func (s *Server) Move(ctx context.Context, req *rpc.MoveRequest) (*rpc.MoveResponse, error) {
	a, from, err := s.resolve(ctx, req.GetSource())
	if err != nil {
		return nil, err
	}
	to, err := s.path(a, req.GetDestination())
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if _, err := os.Lstat(from); err != nil {
		return nil, fault("find what is moved", err)
	}
	if err := a.mkdir(filepath.Dir(to)); err != nil {
		return nil, fault("make directory", err)
	}
	err = os.Rename(from, to)
	if errors.Is(err, syscall.EXDEV) { // /tmp is often in memory
		out, e := exec.CommandContext(ctx, "mv", "-fT", "--", from, to).CombinedOutput()
		if err = e; err != nil {
			err = fmt.Errorf("mv: %w: %.500s", err, out)
		}
	}
	if err != nil {
		return nil, fault("move", err)
	}
	entry, err := names{}.entry(to)
	if err != nil {
		return nil, fault("find what was moved", err)
	}
	return &rpc.MoveResponse{Entry: entry}, nil
}

// Remove removes a file, or a directory with its content. A missing path is not an error.
func (s *Server) Remove(ctx context.Context, req *rpc.RemoveRequest) (*rpc.RemoveResponse, error) {
	_, path, err := s.resolve(ctx, req.GetPath())
	if err != nil {
		return nil, err
	}
	if err := removable(path); err != nil {
		return nil, err
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, fault("remove", err)
	}
	return &rpc.RemoveResponse{}, nil
}

// removable checks a path for Remove. It is separate so that its test removes nothing.
func removable(path string) error {
	if path == "/" {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("path: / is not removed"))
	}
	return nil
}

// ListDir lists a directory, down to a depth.
func (s *Server) ListDir(ctx context.Context, req *rpc.ListDirRequest) (*rpc.ListDirResponse, error) {
	_, path, err := s.resolve(ctx, req.GetPath())
	if err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fault("find directory", err)
	}
	select { // a list may be long, so only a few are made at once
	case s.lists <- struct{}{}:
		defer func() { <-s.lists }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l := list{names: names{}}
	if err := l.add(ctx, dir, path, max(req.GetDepth(), 1)); err != nil {
		return nil, err
	}
	return &rpc.ListDirResponse{Entries: l.entries}, nil
}

type list struct {
	names   names
	entries []*rpc.EntryInfo
}

// add adds the entries of a directory, with the paths that the client sees.
func (l *list) add(ctx context.Context, dir, shown string, depth uint32) error {
	var found []string
	err := eachName(dir, func(name string, _ fs.DirEntry) error {
		if len(l.entries)+len(found) >= maxEntries {
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%s has more than %d entries: list one of its directories, or with less depth", shown, maxEntries))
		}
		found = append(found, name)
		return ctx.Err()
	})
	if refused, ok := errors.AsType[*connect.Error](err); ok {
		return refused
	}
	if err != nil {
		return fault("read directory", err)
	}
	slices.Sort(found)
	for _, name := range found {
		path := filepath.Join(dir, name)
		entry, err := l.names.entry(path)
		if errors.Is(err, fs.ErrNotExist) { // removed since it was read
			continue
		}
		if err != nil {
			return fault("find file", err)
		}
		entry.Path = text(filepath.Join(shown, name))
		l.entries = append(l.entries, entry)
		if depth > 1 && entry.GetType() == rpc.FileType_FILE_TYPE_DIRECTORY && entry.SymlinkTarget == nil {
			if err := l.add(ctx, path, entry.GetPath(), depth-1); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
				return err
			}
		}
	}
	return nil
}

// eachName calls each for every entry of a directory, which may have millions.
func eachName(dir string, each func(name string, entry fs.DirEntry) error) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	for {
		entries, err := f.ReadDir(256)
		for _, e := range entries {
			if err := each(e.Name(), e); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// names caches names of users and groups during one call: "u0" is root.
type names map[string]string

func (n names) of(kind string, id uint32, find func(string) (string, error)) string {
	number := strconv.FormatUint(uint64(id), 10)
	name, ok := n[kind+number]
	if !ok {
		var err error
		if name, err = find(number); err != nil {
			name = number
		}
		n[kind+number] = name
	}
	return name
}

// entry describes what is at a path. The type and mode of a symbolic link are its target's.
func (n names) entry(path string) (*rpc.EntryInfo, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	e := &rpc.EntryInfo{
		Name: text(info.Name()), Path: text(path), Size: info.Size(),
		Permissions: info.Mode().String(), ModifiedTime: timestamppb.New(info.ModTime()),
		Metadata: readMetadata(path),
	}
	target := info
	if info.Mode()&fs.ModeSymlink != 0 {
		to, err := filepath.EvalSymlinks(path)
		e.SymlinkTarget = new(text(cmp.Or(to, path)))
		if err == nil {
			target, err = os.Stat(to)
		}
		if err != nil {
			target = nil
		}
	}
	if target != nil {
		e.Mode = uint32(target.Mode().Perm())
		switch {
		case target.Mode().IsRegular():
			e.Type = rpc.FileType_FILE_TYPE_FILE
		case target.IsDir():
			e.Type = rpc.FileType_FILE_TYPE_DIRECTORY
		}
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		e.Owner = n.of("u", stat.Uid, func(id string) (string, error) {
			u, err := user.LookupId(id)
			if err != nil {
				return "", err
			}
			return u.Username, nil
		})
		e.Group = n.of("g", stat.Gid, func(id string) (string, error) {
			g, err := user.LookupGroupId(id)
			if err != nil {
				return "", err
			}
			return g.Name, nil
		})
	}
	return e, nil
}

// text returns a file name for a message, which must be UTF-8: a file name need not be.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
