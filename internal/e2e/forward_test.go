package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestForward_CarriesConnectionsIntoTheVM goes to a server on the VM's loopback,
// which is this machine's in the process lab.
func TestForward_CarriesConnectionsIntoTheVM(t *testing.T) {
	t.Parallel()
	h := newHost(t, "process")
	h.cli(t, "vm", "create", "dev")
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "from the VM") }))
	defer site.Close()
	inside, here, other := site.Listener.Addr().(*net.TCPAddr).Port, freePort(t), freePort(t)

	cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, "linus"), "vm", "forward", "dev", fmt.Sprintf("%s:%d", here, inside), other)
	cmd.Env, cmd.Stderr = h.env, t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() //nolint:errcheck // it is interrupted
	defer cmd.Process.Signal(os.Interrupt)
	lines := bufio.NewScanner(out)
	for _, want := range []string{fmt.Sprintf("127.0.0.1:%s is port %d of VM dev", here, inside), fmt.Sprintf("127.0.0.1:%s is port %s of VM dev", other, other)} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("it says %q, want %q", lines.Text(), want)
		}
	}
	// It said so, so it listens.
	resp, err := http.Get("http://127.0.0.1:" + here + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); string(body) != "from the VM" {
		t.Errorf("got %q", body)
	}

	again := exec.CommandContext(t.Context(), filepath.Join(binDir, "linus"), "vm", "forward", "dev", here)
	again.Env = h.env
	if said, err := again.CombinedOutput(); err == nil || !strings.Contains(string(said), "Address already in use") || strings.Contains(string(said), "is port") {
		t.Errorf("a port in use: %v, %s", err, said)
	}
}

// A port of a VM has a URL of the server, for those who may reach the VM.
func TestExpose_ServesAPortOfTheVM(t *testing.T) {
	t.Parallel()
	h := newHost(t, "process", clientsToken)
	url := strings.TrimSuffix(h.serveHTTP(t), "/mcp")
	h.cli(t, "vm", "create", "dev")
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "from the VM, for %s %s %q", r.Host, r.URL.Path, r.Header.Get("Authorization"))
	}))
	defer site.Close()
	port := site.Listener.Addr().(*net.TCPAddr).Port
	at := strings.TrimSpace(h.cli(t, "vm", "expose", "dev", strconv.Itoa(port), "--as", "web"))
	if !strings.HasPrefix(at, url+"/ports/web-") {
		t.Fatalf("%q is not below %s", at, url)
	}
	get := func(bearer string) (int, string) {
		req, err := http.NewRequest(http.MethodGet, at+"x", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	token := strings.TrimPrefix(clientsToken, "HTTP_TOKEN=")
	if code, text := get(token); code != 200 || text != fmt.Sprintf(`from the VM, for localhost:%d /x ""`, port) {
		t.Errorf("%d %s", code, text)
	}
	if code, text := get(""); code != 401 {
		t.Errorf("without a login: %d %s", code, text)
	}
	h.cli(t, "vm", "destroy", "dev", "--yes")
	if code, text := get(token); code != 404 {
		t.Errorf("after the VM: %d %s", code, text)
	}
}

// TestCopy_IntoAJobThatRunsAndBack copies by a job's id, names and all.
func TestCopy_IntoAJobThatRunsAndBack(t *testing.T) {
	t.Parallel()
	h := newHost(t, "process")
	dir := t.TempDir()
	name := "a b;$(reboot) 'c'\n*.txt"
	if err := os.MkdirAll(filepath.Join(dir, "in", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "in", "deep", name), []byte("here and back"), 0o640); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(h.cli(t, "job", "submit", "--", "sleep", "600"))
	for !strings.Contains(h.cli(t, "job", "status", id), "running") {
		time.Sleep(50 * time.Millisecond) // the test's time bounds it
	}
	h.cli(t, "vm", "cp", filepath.Join(dir, "in"), id+":")
	h.cli(t, "vm", "cp", id+":in", filepath.Join(dir, "out"))
	if data, err := os.ReadFile(filepath.Join(dir, "out", "deep", name)); err != nil || string(data) != "here and back" {
		t.Errorf("%q, %v", data, err)
	}
	h.cli(t, "job", "cancel", id)
}

// TestCopy_LeavesOutWhatIsNoFile copies a directory as people have them: links to
// nowhere and to directories, a pipe, a socket, nothing, odd names.
func TestCopy_LeavesOutWhatIsNoFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, "process")
	h.cli(t, "vm", "create", "dev")
	dir := filepath.Join(t.TempDir(), "src")
	odd := "odd\n$(name)"
	made := exec.Command("bash", "-ec", `umask 022; mkdir -p "$1/empty" "$1/sub"; cd "$1"; echo a >a; echo z >z; ln -s nowhere m; ln -s a link; ln -s ../sub sub/up
ln -s sub other; ln -s . loop; mkfifo fifo; echo x >sub/x; printf odd >"$2"`, "_", dir, odd)
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	socket, err := net.Listen("unix", filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	temporary := t.TempDir()
	for _, source := range []string{dir, dir + "/."} {
		cp := exec.Command(filepath.Join(binDir, "linus"), "vm", "cp", source, "dev:copy")
		cp.Env = append(h.env, "TMPDIR="+temporary)
		said, err := cp.CombinedOutput()
		if err != nil {
			t.Fatalf("%v, %s", err, said)
		}
		for _, out := range []string{`/m" is a dangling link`, `/loop" is a link to a directory that contains it`, `/fifo" is not a file`, `/sock" is not a file`, `/sub/up" is a link to a directory that contains it`} {
			if !strings.Contains(string(said), out) {
				t.Errorf("not said: %s in\n%s", out, said)
			}
		}
		found := h.cli(t, "vm", "ssh", "dev", "--", "sh", "-c", `cd copy && find . -type l -o -type f -exec sh -c 'printf "%s=%s;" "$1" "$(cat "$1")"' _ {} \; -o -type d -empty -printf '%p/;' | tr '\n' '?'; cd; rm -r copy`)
		parts := strings.Split(strings.TrimSuffix(found, ";"), ";")
		slices.Sort(parts)
		if want := []string{"./a=a", "./empty/", "./link=a", "./odd?$(name)=odd", "./other/x=x", "./sub/x=x", "./z=z"}; !slices.Equal(parts, want) {
			t.Errorf("copied %q, want %q", parts, want)
		}
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("left here: %v, %v", left, err)
	}
	// What is meant itself and is not there is an error, as ever.
	cp := exec.Command(filepath.Join(binDir, "linus"), "vm", "cp", filepath.Join(dir, "m"), "dev:")
	cp.Env = h.env
	if said, err := cp.CombinedOutput(); err == nil {
		t.Errorf("a link to nowhere is copied: %s", said)
	}
}
