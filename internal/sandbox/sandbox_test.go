package sandbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"linus/internal/envd"
	"linus/internal/leaktest"
	"linus/internal/sandbox"
	"linus/internal/sandbox/rpc"
)

// box is a sandbox that is served, and clients of it.
type box struct {
	socket string
	dir    string // the home of whom it is done for, as far as tests go
	http   *http.Client
	rpc.ProcessClient
	rpc.FilesystemClient
}

// serve serves a sandbox until the test ends. Its paths are in a directory of the test.
func serve(t *testing.T, options ...connect.ClientOption) *box {
	t.Helper()
	self, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	b := &box{socket: filepath.Join(t.TempDir(), "s"), dir: t.TempDir()}
	b.serveFrom(t, sandbox.Options{User: self.Username}, options...)
	if status, text := b.call(t, "POST", "/init", nil, marshal(t, envd.Init{Template: &envd.Template{Workdir: b.dir}})); status != http.StatusNoContent {
		t.Fatal(status, text)
	}
	return b
}

// serveFrom serves a sandbox until the test ends, or end is called.
func (b *box) serveFrom(t *testing.T, o sandbox.Options, options ...connect.ClientOption) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- sandbox.Serve(ctx, b.socket, o, func() { close(ready) })
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	transport := &http.Transport{Protocols: &http.Protocols{}, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", b.socket)
	}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	b.http = &http.Client{Transport: transport}
	end = sync.OnceFunc(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	b.ProcessClient = rpc.NewProcessClient(b.http, "http://sandbox", options...)
	b.FilesystemClient = rpc.NewFilesystemClient(b.http, "http://sandbox", options...)
	return end
}

func marshal(t *testing.T, value any) string {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// call makes a request that is no RPC.
func (b *box) call(t *testing.T, method, path string, header http.Header, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://sandbox"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, header)
	answer, err := b.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

// bash is a request that runs a command as clients do.
func bash(command string) *rpc.StartRequest {
	return &rpc.StartRequest{Process: &rpc.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", command}}, Stdin: new(false)}
}

// running is a process that was started.
type running struct {
	pid    uint32
	stream interface {
		Receive() bool
		Err() error
		Close() error
	}
	event func() *rpc.ProcessEvent
	said  string // and was not asked for yet
}

func (b *box) start(t *testing.T, ctx context.Context, req *rpc.StartRequest) *running {
	t.Helper()
	stream, err := b.ProcessClient.Start(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{stream: stream, event: func() *rpc.ProcessEvent { return stream.Msg().GetEvent() }}
	r.started(t)
	return r
}

func (b *box) connect(t *testing.T, selector *rpc.ProcessSelector) *running {
	t.Helper()
	stream, err := b.ProcessClient.Connect(t.Context(), &rpc.ConnectRequest{Process: selector})
	if err != nil {
		t.Fatal(err)
	}
	r := &running{stream: stream, event: func() *rpc.ProcessEvent { return stream.Msg().GetEvent() }}
	r.started(t)
	return r
}

func (r *running) started(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { _ = r.stream.Close() })
	if !r.stream.Receive() || r.event().GetStart() == nil {
		t.Fatalf("the first event is %v, %v", r.event(), r.stream.Err())
	}
	r.pid = r.event().GetStart().GetPid()
}

// next waits for something that a process says, and takes all up to that.
func (r *running) next(t *testing.T, want string) {
	t.Helper()
	for {
		if _, rest, found := strings.Cut(r.said, want); found {
			r.said = rest
			return
		}
		if !r.stream.Receive() {
			t.Fatalf("%q did not come, but %q: %v", want, r.said, r.stream.Err())
		}
		data := r.event().GetData()
		r.said += string(data.GetStdout()) + string(data.GetStderr()) + string(data.GetPty())
	}
}

// rest is all else that a process says, and its end.
func (r *running) rest(t *testing.T) (stdout, stderr string, end *rpc.ProcessEvent_EndEvent) {
	t.Helper()
	stdout, r.said = strings.TrimLeft(r.said, "\r\n"), ""
	for r.stream.Receive() {
		stdout += string(r.event().GetData().GetStdout()) + string(r.event().GetData().GetPty())
		stderr += string(r.event().GetData().GetStderr())
		end = r.event().GetEnd()
	}
	if err := r.stream.Err(); err != nil {
		t.Fatal(err)
	}
	if end == nil {
		t.Fatal("the stream ended without an end")
	}
	return stdout, stderr, end
}

func pid(n uint32) *rpc.ProcessSelector {
	return &rpc.ProcessSelector{Selector: &rpc.ProcessSelector_Pid{Pid: n}}
}

func tag(s string) *rpc.ProcessSelector {
	return &rpc.ProcessSelector{Selector: &rpc.ProcessSelector_Tag{Tag: s}}
}

func stdin(s string) *rpc.ProcessInput {
	return &rpc.ProcessInput{Input: &rpc.ProcessInput_Stdin{Stdin: []byte(s)}}
}

func wantCode(t *testing.T, err error, want connect.Code) {
	t.Helper()
	if err == nil || connect.CodeOf(err) != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

func TestStart_TellsWhatAProcessSaysAndHowItEnds(t *testing.T) {
	for name, options := range map[string][]connect.ClientOption{"binary": nil, "JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}} {
		t.Run(name, func(t *testing.T) {
			b := serve(t, options...)
			for _, c := range []struct {
				command, stdout, stderr, status string
				code                            int32
				exited                          bool
			}{
				{"echo out; echo err >&2", "out\n", "err\n", "exit status 0", 0, true},
				{"exit 7", "", "", "exit status 7", 7, true},
				{"kill -9 $$", "", "", "signal: killed", -1, false},
				{"pwd; echo $A $B", b.dir + "\none two\n", "", "exit status 0", 0, true},
				{"head -c 300000 /dev/zero | tr '\\0' x", strings.Repeat("x", 300000), "", "exit status 0", 0, true},
				{"cat; cat /proc/$$/oom_score_adj", "100\n", "", "exit status 0", 0, true},
			} {
				req := bash(c.command)
				req.Process.Envs = map[string]string{"A": "one", "B": "two"}
				stdout, stderr, end := b.start(t, t.Context(), req).rest(t)
				if stdout != c.stdout || stderr != c.stderr || end.GetStatus() != c.status || end.GetExitCode() != c.code || end.GetExited() != c.exited || (end.Error != nil) != (c.code != 0) {
					t.Errorf("%s: %.100q, %.100q, %v", c.command, stdout, stderr, end)
				}
			}
		})
	}
}

func TestStart_Refusals(t *testing.T) {
	b := serve(t)
	_, _, end := b.start(t, t.Context(), &rpc.StartRequest{Process: &rpc.ProcessConfig{Cmd: "no-such-command"}}).rest(t)
	if end.GetExitCode() != 127 {
		t.Errorf("a command that is not there: %v", end)
	}
	for name, c := range map[string]struct {
		config *rpc.ProcessConfig
		code   connect.Code
	}{
		"no directory":   {&rpc.ProcessConfig{Cmd: "true", Cwd: new("/no/such")}, connect.CodeInvalidArgument},
		"a file":         {&rpc.ProcessConfig{Cmd: "true", Cwd: new("/etc/passwd")}, connect.CodeInvalidArgument},
		"NUL":            {&rpc.ProcessConfig{Cmd: "true", Args: []string{"a\x00b"}}, connect.CodeInvalidArgument},
		"too much":       {&rpc.ProcessConfig{Cmd: "true", Args: []string{strings.Repeat("x", 1<<20)}}, connect.CodeInvalidArgument},
		"a large frame":  {&rpc.ProcessConfig{Cmd: "true", Args: []string{strings.Repeat("x", 3<<20)}}, connect.CodeResourceExhausted},
		"NUL in its env": {&rpc.ProcessConfig{Cmd: "true", Envs: map[string]string{"A": "\x00"}}, connect.CodeInvalidArgument},
	} {
		stream, err := b.ProcessClient.Start(t.Context(), &rpc.StartRequest{Process: c.config})
		if err == nil {
			if stream.Receive() {
				t.Errorf("%s: it started", name)
			}
			err = stream.Err()
			_ = stream.Close()
		}
		if connect.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := b.List(t.Context(), &rpc.ListRequest{}); err != nil || len(list.GetProcesses()) != 0 {
		t.Errorf("what runs: %v, %v", list, err)
	}
}

func TestProcess_LivesOnWithoutItsClientAndIsFound(t *testing.T) {
	b := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	req := bash("read line; echo got $line; read line; exit 3")
	req.Stdin, req.Tag = new(true), new("mine")
	p := b.start(t, ctx, req)
	cancel()
	if p.stream.Receive() {
		t.Error("the stream goes on")
	}
	list, err := b.List(t.Context(), &rpc.ListRequest{})
	if err != nil || len(list.GetProcesses()) != 1 || list.GetProcesses()[0].GetPid() != p.pid || list.GetProcesses()[0].GetTag() != "mine" || list.GetProcesses()[0].GetConfig().GetCmd() != "/bin/bash" {
		t.Fatalf("what runs: %v, %v", list, err)
	}
	byTag, byPID := b.connect(t, tag("mine")), b.connect(t, pid(p.pid))
	for range 2 {
		if _, err := b.SendInput(t.Context(), &rpc.SendInputRequest{Process: tag("mine"), Input: stdin("it\n")}); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []*running{byTag, byPID} {
		if stdout, _, end := r.rest(t); stdout != "got it\n" || end.GetExitCode() != 3 || r.pid != p.pid {
			t.Errorf("a listener gets %q, %v", stdout, end)
		}
	}
	// Its end is told for a while to who asks late.
	if stdout, _, end := b.connect(t, pid(p.pid)).rest(t); stdout != "" || end.GetExitCode() != 3 {
		t.Errorf("a late one gets %q, %v", stdout, end)
	}
	_, err = b.SendInput(t.Context(), &rpc.SendInputRequest{Process: pid(p.pid), Input: stdin("x")})
	wantCode(t, err, connect.CodeNotFound)
}

func TestProcess_ATimeLimitIsTheProcessesToo(t *testing.T) {
	b := serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	p := b.start(t, ctx, bash("sleep 1000 & wait"))
	if p.stream.Receive() {
		t.Errorf("it got %v", p.event())
	}
	wantCode(t, p.stream.Err(), connect.CodeDeadlineExceeded)
	if _, _, end := b.connect(t, pid(p.pid)).rest(t); end.GetStatus() != "signal: killed" {
		t.Errorf("it ended by %v", end)
	}
}

func TestSendSignal_EndsAProcessWithItsChildren(t *testing.T) {
	b := serve(t)
	p := b.start(t, t.Context(), bash("trap 'echo caught; exit 5' TERM; echo up; while :; do sleep 0.05; done"))
	p.next(t, "up")
	if _, err := b.SendSignal(t.Context(), &rpc.SendSignalRequest{Process: pid(p.pid), Signal: rpc.Signal_SIGNAL_SIGTERM}); err != nil {
		t.Fatal(err)
	}
	if stdout, _, end := p.rest(t); stdout != "caught\n" || end.GetExitCode() != 5 {
		t.Errorf("SIGTERM: %q, %v", stdout, end)
	}

	p = b.start(t, t.Context(), bash("sleep 1000 & echo $!; wait"))
	var child string
	for child == "" && p.stream.Receive() {
		child = strings.TrimSpace(string(p.event().GetData().GetStdout()))
	}
	if _, err := b.SendSignal(t.Context(), &rpc.SendSignalRequest{Process: pid(p.pid), Signal: rpc.Signal_SIGNAL_SIGKILL}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/proc/" + strconv.Itoa(int(p.pid))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if _, _, end := p.rest(t); end.GetStatus() != "signal: killed" {
		t.Errorf("SIGKILL: %v", end)
	}
	eventually(t, func() bool {
		state, err := os.ReadFile("/proc/" + child + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ")
	})
	for signal, want := range map[rpc.Signal]connect.Code{rpc.Signal_SIGNAL_SIGKILL: connect.CodeNotFound, 1: connect.CodeNotFound} {
		_, err := b.SendSignal(t.Context(), &rpc.SendSignalRequest{Process: pid(p.pid), Signal: signal})
		wantCode(t, err, want)
	}
	_, err := b.SendSignal(t.Context(), &rpc.SendSignalRequest{Signal: rpc.Signal_SIGNAL_SIGKILL})
	wantCode(t, err, connect.CodeInvalidArgument)
}

// A child that leaves its group and keeps the output does not keep what was killed alive.
func TestSendSignal_AChildThatHasTheOutputHoldsNothingUp(t *testing.T) {
	b := serve(t)
	p := b.start(t, t.Context(), bash("setsid sleep 20 & echo up; wait"))
	p.next(t, "up")
	if _, err := b.SendSignal(t.Context(), &rpc.SendSignalRequest{Process: pid(p.pid), Signal: rpc.Signal_SIGNAL_SIGKILL}); err != nil {
		t.Fatal(err)
	}
	if _, _, end := p.rest(t); end.GetStatus() != "signal: killed" {
		t.Errorf("it ended by %v", end)
	}
}

func TestInput(t *testing.T) {
	b := serve(t)
	cat := bash("cat")
	cat.Stdin = nil
	p := b.start(t, t.Context(), cat)
	input, err := b.StreamInput(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, event := range []*rpc.StreamInputRequest{
		{Event: &rpc.StreamInputRequest_Start{Start: &rpc.StreamInputRequest_StartEvent{Process: pid(p.pid)}}},
		{Event: &rpc.StreamInputRequest_Data{Data: &rpc.StreamInputRequest_DataEvent{Input: stdin("one ")}}},
		{Event: &rpc.StreamInputRequest_Keepalive{}},
		{Event: &rpc.StreamInputRequest_Data{Data: &rpc.StreamInputRequest_DataEvent{Input: stdin("two")}}},
	} {
		if err := input.Send(event); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := input.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	_, err = b.SendInput(t.Context(), &rpc.SendInputRequest{Process: pid(p.pid), Input: &rpc.ProcessInput{Input: &rpc.ProcessInput_Pty{Pty: []byte("x")}}})
	wantCode(t, err, connect.CodeFailedPrecondition)
	_, err = b.SendInput(t.Context(), &rpc.SendInputRequest{Process: pid(p.pid)})
	wantCode(t, err, connect.CodeInvalidArgument)
	_, err = b.Update(t.Context(), &rpc.UpdateRequest{Process: pid(p.pid), Pty: &rpc.PTY{}})
	wantCode(t, err, connect.CodeFailedPrecondition)
	if _, err := b.CloseStdin(t.Context(), &rpc.CloseStdinRequest{Process: pid(p.pid)}); err != nil {
		t.Fatal(err)
	}
	if stdout, _, end := p.rest(t); stdout != "one two" || end.GetExitCode() != 0 {
		t.Errorf("it got %q, %v", stdout, end)
	}
	early, err := b.StreamInput(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = early.Send(&rpc.StreamInputRequest{Event: &rpc.StreamInputRequest_Data{Data: &rpc.StreamInputRequest_DataEvent{Input: stdin("x")}}})
	_, err = early.CloseAndReceive()
	wantCode(t, err, connect.CodeInvalidArgument)

	p = b.start(t, t.Context(), bash("sleep 1000"))
	if _, err := b.CloseStdin(t.Context(), &rpc.CloseStdinRequest{Process: pid(p.pid)}); err != nil {
		t.Errorf("to close what was never open: %v", err)
	}
	_, err = b.SendInput(t.Context(), &rpc.SendInputRequest{Process: pid(p.pid), Input: stdin("x")})
	wantCode(t, err, connect.CodeFailedPrecondition)
}

// A process that takes no input holds up who sends it for no longer than that waits, and who
// sends to others not at all.
func TestInput_OfAProcessThatReadsNone(t *testing.T) {
	b := serve(t)
	sleep := bash("sleep 1000")
	sleep.Stdin = new(true)
	p := b.start(t, t.Context(), sleep)
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := b.SendInput(ctx, &rpc.SendInputRequest{Process: pid(p.pid), Input: stdin(strings.Repeat("x", 1<<20))})
		cancel()
		wantCode(t, err, connect.CodeDeadlineExceeded)
	}
}

func TestTerminal(t *testing.T) {
	b := serve(t)
	size := func(cols, rows uint32) *rpc.PTY { return &rpc.PTY{Size: &rpc.PTY_Size{Cols: cols, Rows: rows}} }
	req := bash("stty size; test -t 0 && echo terminal; read x; stty size; read x; echo $x")
	req.Pty = size(81, 25)
	p := b.start(t, t.Context(), req)
	p.next(t, "25 81")
	p.next(t, "terminal")
	if _, err := b.Update(t.Context(), &rpc.UpdateRequest{Process: pid(p.pid), Pty: size(100, 40)}); err != nil {
		t.Fatal(err)
	}
	send := func(s string) error {
		_, err := b.SendInput(t.Context(), &rpc.SendInputRequest{Process: pid(p.pid), Input: &rpc.ProcessInput{Input: &rpc.ProcessInput_Pty{Pty: []byte(s)}}})
		return err
	}
	if err := send("\n"); err != nil {
		t.Fatal(err)
	}
	p.next(t, "40 100")
	_, err := b.SendInput(t.Context(), &rpc.SendInputRequest{Process: pid(p.pid), Input: stdin("x")})
	wantCode(t, err, connect.CodeFailedPrecondition)
	_, err = b.CloseStdin(t.Context(), &rpc.CloseStdinRequest{Process: pid(p.pid)})
	wantCode(t, err, connect.CodeFailedPrecondition)
	if err := send("bye\n"); err != nil {
		t.Fatal(err)
	}
	if said, _, end := p.rest(t); !strings.HasSuffix(said, "bye\r\n") || end.GetExitCode() != 0 {
		t.Errorf("it says %q, %v", said, end)
	}

	req = bash("read x")
	req.Pty = size(80, 24)
	p = b.start(t, t.Context(), req)
	if _, err := b.SendSignal(t.Context(), &rpc.SendSignalRequest{Process: pid(p.pid), Signal: rpc.Signal_SIGNAL_SIGKILL}); err != nil {
		t.Fatal(err)
	}
	if _, _, end := p.rest(t); end.GetStatus() != "signal: killed" {
		t.Errorf("it ended by %v", end)
	}
}

func TestKeepalive_AsOftenAsTheClientWants(t *testing.T) {
	b := serve(t)
	ctx, call := connect.NewClientContext(t.Context())
	call.RequestHeader().Set("Keepalive-Ping-Interval", "1")
	p := b.start(t, ctx, bash("sleep 1000"))
	if !p.stream.Receive() || p.event().GetKeepalive() == nil {
		t.Errorf("it gets %v, %v", p.event(), p.stream.Err())
	}
	watching, err := b.WatchDir(ctx, &rpc.WatchDirRequest{Path: b.dir})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Close()
	if !watching.Receive() || watching.Msg().GetStart() == nil || !watching.Receive() || watching.Msg().GetKeepalive() == nil {
		t.Errorf("it gets %v, %v", watching.Msg(), watching.Err())
	}
}

// Output while nobody listens is lost, not kept, and stops nothing.
func TestOutput_WithoutListenersIsDropped(t *testing.T) {
	b := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	req := bash("read x; head -c 50000000 /dev/zero; echo > done; read x; echo last")
	req.Stdin, req.Process.Cwd = new(true), &b.dir
	p := b.start(t, ctx, req)
	cancel()
	p.stream.Receive()
	next := func() {
		if _, err := b.SendInput(t.Context(), &rpc.SendInputRequest{Process: pid(p.pid), Input: stdin("\n")}); err != nil {
			t.Fatal(err)
		}
	}
	next()
	eventually(t, func() bool { _, err := os.Stat(filepath.Join(b.dir, "done")); return err == nil })
	late := b.connect(t, pid(p.pid))
	next()
	if stdout, _, _ := late.rest(t); stdout != "last\n" {
		t.Errorf("a late listener gets %d bytes", len(stdout))
	}
}

// A listener that takes nothing stops no other.
func TestOutput_OneListenerIsSlow(t *testing.T) {
	b := serve(t)
	req := bash("read x; head -c 2000000 /dev/zero; echo end")
	req.Stdin = new(true)
	p := b.start(t, t.Context(), req)
	var wait sync.WaitGroup
	for range 3 {
		fast := b.connect(t, pid(p.pid))
		wait.Go(func() {
			if stdout, _, _ := fast.rest(t); len(stdout) != 2_000_004 {
				t.Errorf("a listener gets %d bytes", len(stdout))
			}
		})
	}
	if _, err := b.SendInput(t.Context(), &rpc.SendInputRequest{Process: pid(p.pid), Input: stdin("\n")}); err != nil {
		t.Fatal(err)
	}
	if stdout, _, _ := p.rest(t); len(stdout) != 2_000_004 {
		t.Errorf("the first listener gets %d bytes", len(stdout))
	}
	wait.Wait()
}

func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
	}
}

func TestUsers(t *testing.T) {
	b := serve(t)
	self, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	as := func(name string) context.Context {
		ctx, call := connect.NewClientContext(t.Context())
		req := http.Request{Header: http.Header{}}
		req.SetBasicAuth(name, "")
		call.RequestHeader().Set("Authorization", req.Header.Get("Authorization"))
		return ctx
	}
	for _, name := range []string{self.Username, "user"} { // that is E2B's own, which machines of tests do not have
		if _, err := user.Lookup("user"); err == nil && name == "user" {
			continue
		}
		req := bash("id -un; echo $HOME $USER $LOGNAME $E2B_SANDBOX")
		if stdout, _, _ := b.start(t, as(name), req).rest(t); stdout != self.Username+"\n"+self.HomeDir+" "+self.Username+" "+self.Username+" true\n" {
			t.Errorf("%s: %q", name, stdout)
		}
	}
	stream, err := b.ProcessClient.Start(as("nobody-knows"), bash("true"))
	if err == nil {
		stream.Receive()
		err = stream.Err()
		_ = stream.Close()
	}
	wantCode(t, err, connect.CodeUnauthenticated)
	_, err = b.Stat(as("nobody-knows"), &rpc.StatRequest{Path: "/"})
	wantCode(t, err, connect.CodeUnauthenticated)
	if status, text := b.call(t, "GET", "/files?path=/etc/passwd&username=nobody-knows", nil, ""); status != http.StatusUnauthorized || !strings.Contains(text, `"code":401`) {
		t.Error(status, text)
	}
	if status, text := b.call(t, "POST", "/init", nil, `{"template": {"user": "nobody-knows"}}`); status != http.StatusBadRequest {
		t.Error(status, text)
	}
	if os.Geteuid() != 0 {
		t.Skip("root can be others")
	}
	other, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	req := bash("id -un; id -G")
	req.Process.Cwd, req.Pty = new("/"), nil
	if stdout, _, _ := b.start(t, as("nobody"), req).rest(t); stdout != "nobody\n"+other.Gid+"\n" {
		t.Errorf("nobody is %q", stdout)
	}
	if err := os.Chmod(b.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	made, err := b.MakeDir(as("nobody"), &rpc.MakeDirRequest{Path: b.dir + "/a/b"})
	if err != nil || made.GetEntry().GetOwner() != "nobody" {
		t.Errorf("a directory of nobody: %v, %v", made, err)
	}
	if above, err := b.Stat(t.Context(), &rpc.StatRequest{Path: b.dir + "/a"}); err != nil || above.GetEntry().GetOwner() != "nobody" {
		t.Errorf("the one above: %v, %v", above, err)
	}
	if status, text := b.call(t, "POST", "/files?username=nobody&path="+b.dir+"/c/file", http.Header{"Content-Type": {"application/octet-stream"}}, "x"); status != http.StatusOK {
		t.Error(status, text)
	}
	for _, path := range []string{"/c", "/c/file"} {
		if info, err := b.Stat(t.Context(), &rpc.StatRequest{Path: b.dir + path}); err != nil || info.GetEntry().GetOwner() != "nobody" {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}

func TestInit_GivesWhatProcessesGet(t *testing.T) {
	b := serve(t)
	if status, text := b.call(t, "POST", "/init", nil, `{"envVars": {"A": "of init", "B": "of init"}}`); status != http.StatusNoContent {
		t.Fatal(status, text)
	}
	req := bash("echo $A, $B; pwd")
	req.Process.Envs = map[string]string{"B": "its own"}
	if stdout, _, _ := b.start(t, t.Context(), req).rest(t); stdout != "of init, its own\n"+b.dir+"\n" {
		t.Errorf("a process gets %q", stdout)
	}
	if status, text := b.call(t, "GET", "/envs", nil, ""); status != http.StatusOK || !strings.Contains(text, `"A":"of init"`) {
		t.Error(status, text)
	}
	if status, text := b.call(t, "POST", "/init", nil, `{"changeVars": {"A": "", "C": "new"}}`); status != http.StatusNoContent {
		t.Fatal(status, text)
	}
	if _, text := b.call(t, "GET", "/envs", nil, ""); strings.Contains(text, `"A"`) || !strings.Contains(text, `"B":"of init"`) || !strings.Contains(text, `"C":"new"`) {
		t.Error(text)
	}
	for _, body := range []string{"", "x", `{"envVars": 3}`, `{"envVars": {"A": "` + strings.Repeat("x", 2<<20) + `"}}`} {
		if status, _ := b.call(t, "POST", "/init", nil, body); status != http.StatusBadRequest {
			t.Errorf("%.30q: %d", body, status)
		}
	}
}

func TestMetrics(t *testing.T) {
	b := serve(t)
	for range 2 {
		status, text := b.call(t, "GET", "/metrics", nil, "")
		var m map[string]float64
		if err := json.Unmarshal([]byte(text), &m); err != nil || status != http.StatusOK {
			t.Fatal(status, text, err)
		}
		if m["cpu_count"] < 1 || m["cpu_used_pct"] < 0 || m["cpu_used_pct"] > 100 || m["mem_total"] <= m["mem_used"] || m["mem_used"] <= 0 || m["disk_total"] < m["disk_used"] || m["ts"] < 1e9 {
			t.Errorf("it measures %v", m)
		}
	}
	if status, _ := b.call(t, "GET", "/health", nil, ""); status != http.StatusNoContent {
		t.Errorf("/health: %d", status)
	}
}

// More requests at once than the bound are told so; those that are there go on.
func TestRequests_AreBounded(t *testing.T) {
	b := serve(t)
	p := b.start(t, t.Context(), bash("sleep 1000"))
	var err error
	var streams []*connect.ServerStreamForClient[rpc.ConnectResponse]
	for range 300 {
		var stream *connect.ServerStreamForClient[rpc.ConnectResponse]
		if stream, err = b.ProcessClient.Connect(t.Context(), &rpc.ConnectRequest{Process: pid(p.pid)}); err == nil {
			streams = append(streams, stream)
			if !stream.Receive() {
				err = stream.Err()
			}
		}
		if err != nil {
			break
		}
	}
	wantCode(t, err, connect.CodeResourceExhausted)
	if status, _ := b.call(t, "GET", "/health", nil, ""); status != http.StatusTooManyRequests {
		t.Errorf("/health: %d", status)
	}
	for _, stream := range streams {
		_ = stream.Close()
	}
	eventually(t, func() bool {
		_, err := b.SendSignal(t.Context(), &rpc.SendSignalRequest{Process: pid(p.pid), Signal: rpc.Signal_SIGNAL_SIGKILL})
		return err == nil
	})
}

func TestServe_IsServedOnce(t *testing.T) {
	b := serve(t)
	if err := sandbox.Serve(t.Context(), b.socket, sandbox.Options{}, func() { t.Error("it serves, too") }); !errors.Is(err, sandbox.ErrServed) {
		t.Errorf("the second: %v", err)
	}
	info, err := os.Stat(b.socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
}

// The program leaves one behind that serves, in place of one that was killed.
func TestProgram_Detaches(t *testing.T) {
	dir := t.TempDir()
	program, socket := filepath.Join(dir, "linus-sandbox"), filepath.Join(dir, "s")
	if out, err := exec.Command("go", "build", "-o", program, "linus/cmd/linus-sandbox").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	self, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	run := func(argv ...string) (string, error) {
		out, err := exec.Command(program, argv...).CombinedOutput()
		return string(out), err
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	client := rpc.NewProcessClient(&http.Client{Transport: transport}, "http://sandbox", connect.WithProtoJSON())
	for range 2 {
		for range 2 {
			if out, err := run("serve", "--socket", socket, "--user", self.Username, "--detach"); err != nil {
				t.Fatal(err, out)
			}
		}
		// It is told to kill itself, by its child.
		stream, err := client.Start(t.Context(), bash("echo up; kill -9 $PPID"))
		if err != nil {
			t.Fatal(err)
		}
		for stream.Receive() {
		}
		_ = stream.Close()
	}
	for _, argv := range [][]string{{}, {"serve"}, {"serve", "--socket"}, {"serve", "--socket", socket, "more"}} {
		if out, err := run(argv...); err == nil || !strings.Contains(out, "usage:") {
			t.Errorf("%q: %v %s", argv, err, out)
		}
	}
	if out, err := run("serve", "--socket", filepath.Join(dir, "no", "s"), "--detach"); err == nil {
		t.Errorf("in no directory: %s", out)
	}
	if out, err := run("serve", "--socket", filepath.Join(dir, strings.Repeat("x", 200)), "--detach"); err == nil || !strings.Contains(out, "listen on the socket") {
		t.Errorf("at a path that is too long: %v %s", err, out)
	}
}

func TestMain(m *testing.M) { leaktest.Main(m) }
