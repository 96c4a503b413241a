package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"linus/internal/sandbox/rpc"
)

// abandoned is how long a watcher must be unused before another may take its place.
const abandoned = 10 * time.Minute

// watched are the events of a directory that the kernel reports.
const watched = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// watch watches a directory and, if recursive, all directories below it.
type watch struct {
	file      *os.File // the kernel's queue, which the kernel bounds
	root      string
	recursive bool
	entries   bool           // events include their entry
	dirs      map[int]string // by the kernel's watch descriptors
	release   func()
}

// watchRequest is what CreateWatcherRequest and WatchDirRequest have in common.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

func (s *Server) watch(ctx context.Context, req watchRequest) (*watch, error) {
	_, path, err := s.resolve(ctx, req.GetPath())
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fault("find directory", err)
	}
	if !info.IsDir() {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path %s is not a directory", path))
	}
	if !req.GetAllowNetworkMounts() {
		var st unix.Statfs_t
		if err := unix.Statfs(path, &st); err != nil {
			return nil, fault("find file system", err)
		}
		switch st.Type {
		case unix.NFS_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC:
			return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("cannot watch path on network filesystem: %s: what others change there is not seen; allow network mounts to watch it all the same", path))
		}
	}
	select {
	case s.watches <- struct{}{}:
	default:
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the sandbox has %d watches: end some", maxWatches))
	}
	w := &watch{root: path, recursive: req.GetRecursive(), entries: req.GetIncludeEntry(), dirs: map[int]string{}, release: sync.OnceFunc(func() { <-s.watches })}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		w.release()
		return nil, fault("start to watch", err)
	}
	w.file = os.NewFile(uintptr(fd), "inotify")
	if err := w.add(path, nil); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *watch) close() {
	_ = w.file.Close()
	w.release()
}

// add watches a directory. If the watch is recursive, it calls found, if not nil, for what is
// already in the directory, and adds its subdirectories.
func (w *watch) add(dir string, found func(path string)) error {
	if len(w.dirs) >= maxWatched {
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%s has more than %d directories: watch one of them", w.root, maxWatched))
	}
	mask := uint32(watched)
	if dir != w.root {
		mask |= unix.IN_DONT_FOLLOW
	}
	conn, err := w.file.SyscallConn()
	var wd int
	if err == nil {
		if e := conn.Control(func(fd uintptr) { wd, err = unix.InotifyAddWatch(int(fd), dir, mask) }); e != nil {
			err = e
		}
	}
	if errors.Is(err, syscall.ENOSPC) {
		return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("watch %s: the kernel watches no more directories: raise fs.inotify.max_user_watches", dir))
	}
	if err != nil {
		return fault("watch "+dir, err)
	}
	w.dirs[wd] = dir
	if !w.recursive {
		return nil
	}
	err = eachName(dir, func(name string, entry fs.DirEntry) error {
		path := filepath.Join(dir, name)
		if found != nil {
			found(path)
		}
		if !entry.IsDir() {
			return nil
		}
		return gone(w.add(path, found))
	})
	if refused, ok := errors.AsType[*connect.Error](err); ok {
		return refused
	}
	if gone(err) != nil {
		return fault("read directory", err)
	}
	return nil
}

// gone returns an error, or nil if it says that something was removed or replaced.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return err
}

// run reports changes until the watch is closed, or events were lost.
func (w *watch) run(tell func(*rpc.FilesystemEvent)) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return fault("watch", err)
		}
		for rest := buf[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			var e unix.InotifyEvent
			if _, err := binary.Decode(rest, binary.NativeEndian, &e); err != nil {
				return fault("watch", err)
			}
			end := unix.SizeofInotifyEvent + int(e.Len)
			name := strings.TrimRight(string(rest[unix.SizeofInotifyEvent:end]), "\x00")
			rest = rest[end:]
			if err := w.changed(int(e.Wd), e.Mask, name, tell); err != nil {
				return err
			}
		}
	}
}

func (w *watch) changed(wd int, mask uint32, name string, tell func(*rpc.FilesystemEvent)) error {
	if mask&unix.IN_Q_OVERFLOW != 0 {
		return connect.NewError(connect.CodeDataLoss, errors.New("more changes than could be reported: some are lost; watch again"))
	}
	dir, known := w.dirs[wd]
	if mask&unix.IN_IGNORED != 0 {
		delete(w.dirs, wd)
	}
	if !known || name == "" && dir != w.root { // the parent reports it
		return nil
	}
	path := filepath.Join(dir, name)
	event := func(kind rpc.EventType, path string) {
		relative, err := filepath.Rel(w.root, path)
		if err != nil {
			relative = path
		}
		e := &rpc.FilesystemEvent{Name: text(relative), Type: kind}
		if w.entries && kind != rpc.EventType_EVENT_TYPE_REMOVE && kind != rpc.EventType_EVENT_TYPE_RENAME {
			e.Entry, _ = names{}.entry(path) // nil if it is already gone
		}
		tell(e)
	}
	for _, kind := range []struct {
		mask uint32
		kind rpc.EventType
	}{
		{unix.IN_CREATE | unix.IN_MOVED_TO, rpc.EventType_EVENT_TYPE_CREATE},
		{unix.IN_MOVED_FROM | unix.IN_MOVE_SELF, rpc.EventType_EVENT_TYPE_RENAME},
		{unix.IN_ATTRIB, rpc.EventType_EVENT_TYPE_CHMOD},
		{unix.IN_MODIFY, rpc.EventType_EVENT_TYPE_WRITE},
		{unix.IN_DELETE | unix.IN_DELETE_SELF, rpc.EventType_EVENT_TYPE_REMOVE},
	} {
		if mask&kind.mask != 0 {
			event(kind.kind, path)
		}
	}
	if !w.recursive || mask&unix.IN_ISDIR == 0 || name == "" {
		return nil
	}
	switch {
	case mask&unix.IN_MOVED_FROM != 0:
		w.forget(path)
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0: // report what it got before it was watched
		err := w.add(path, func(path string) { event(rpc.EventType_EVENT_TYPE_CREATE, path) })
		if connect.CodeOf(err) != connect.CodeNotFound {
			return err
		}
	}
	return nil
}

// forget stops watching a moved directory and those below it: at the new place they are new.
func (w *watch) forget(dir string) {
	conn, err := w.file.SyscallConn()
	if err != nil {
		return
	}
	maps.DeleteFunc(w.dirs, func(wd int, path string) bool {
		below := path == dir || strings.HasPrefix(path, dir+"/")
		if below {
			_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) }) //nolint:gosec // the kernel's own, and positive
		}
		return below
	})
}

// WatchDir streams changes in a directory until the client is gone.
func (s *Server) WatchDir(ctx context.Context, req *rpc.WatchDirRequest, stream *connect.ServerStream[rpc.WatchDirResponse]) error {
	w, err := s.watch(ctx, req)
	if err != nil {
		return err
	}
	events, ended := make(chan *rpc.FilesystemEvent), make(chan error, 1)
	go func() {
		ended <- w.run(func(e *rpc.FilesystemEvent) {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		})
		close(events)
	}()
	defer func() {
		w.close()
		for range events { // wait until run has ended
		}
	}()
	if err := stream.Send(&rpc.WatchDirResponse{Event: &rpc.WatchDirResponse_Start{Start: &rpc.WatchDirResponse_StartEvent{}}}); err != nil {
		return err
	}
	interval := keepalive(ctx)
	quiet := time.NewTimer(interval)
	defer quiet.Stop()
	for {
		answer := &rpc.WatchDirResponse{Event: &rpc.WatchDirResponse_Keepalive{Keepalive: &rpc.WatchDirResponse_KeepAlive{}}}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-quiet.C:
		case e, more := <-events:
			if !more {
				return <-ended
			}
			answer.Event = &rpc.WatchDirResponse_Filesystem{Filesystem: e}
		}
		if err := stream.Send(answer); err != nil {
			return err
		}
		quiet.Reset(interval)
	}
}

// watcher is a watch whose events are polled.
type watcher struct {
	watch *watch
	done  chan struct{} // closed when there will be no more events

	mu     sync.Mutex
	events []*rpc.FilesystemEvent
	err    error
	asked  time.Time
}

// CreateWatcher begins to watch a directory for a client that polls for changes.
func (s *Server) CreateWatcher(ctx context.Context, req *rpc.CreateWatcherRequest) (*rpc.CreateWatcherResponse, error) {
	s.removeAbandoned()
	look, err := s.watch(ctx, req)
	if err != nil {
		return nil, err
	}
	w := &watcher{watch: look, done: make(chan struct{}), asked: time.Now()}
	go func() {
		defer close(w.done)
		err := look.run(func(e *rpc.FilesystemEvent) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.events) >= maxEvents && w.err == nil {
				w.events = nil
				w.err = connect.NewError(connect.CodeDataLoss, fmt.Errorf("more than %d changes were not fetched, and are lost: create a watcher again, and fetch more often", maxEvents))
			}
			if w.err == nil {
				w.events = append(w.events, e)
			}
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err == nil {
			w.err = err
		}
	}()
	id := "w" + rand.Text()
	s.mu.Lock()
	s.watchers[id] = w
	s.mu.Unlock()
	return &rpc.CreateWatcherResponse{WatcherId: id}, nil
}

// removeAbandoned makes room by removing unused watchers, which have no end of their own.
func (s *Server) removeAbandoned() {
	s.mu.Lock()
	watchers := maps.Clone(s.watchers)
	s.mu.Unlock()
	for id, w := range watchers {
		w.mu.Lock()
		old := time.Since(w.asked) > abandoned
		w.mu.Unlock()
		if old && len(s.watches) == maxWatches {
			_ = s.removeWatcher(id)
		}
	}
}

// GetWatcherEvents returns the changes since the previous call.
func (s *Server) GetWatcherEvents(_ context.Context, req *rpc.GetWatcherEventsRequest) (*rpc.GetWatcherEventsResponse, error) {
	s.mu.Lock()
	w := s.watchers[req.GetWatcherId()]
	s.mu.Unlock()
	if w == nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher with id %.100s not found", req.GetWatcherId()))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = time.Now()
	if w.err != nil {
		return nil, w.err
	}
	events := w.events
	w.events = nil
	return &rpc.GetWatcherEventsResponse{Events: events}, nil
}

// RemoveWatcher ends a watcher.
func (s *Server) RemoveWatcher(_ context.Context, req *rpc.RemoveWatcherRequest) (*rpc.RemoveWatcherResponse, error) {
	return &rpc.RemoveWatcherResponse{}, s.removeWatcher(req.GetWatcherId())
}

func (s *Server) removeWatcher(id string) error {
	s.mu.Lock()
	w := s.watchers[id]
	delete(s.watchers, id)
	s.mu.Unlock()
	if w == nil {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher with id %.100s not found", id))
	}
	w.watch.close()
	<-w.done
	return nil
}
