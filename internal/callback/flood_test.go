package callback_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/callback"
)

// unreadable fails the test if it is read.
type unreadable struct{ t *testing.T }

func (u unreadable) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

func TestHandler_ReadsNothingOfWhoHasNoToken(t *testing.T) {
	for name, tt := range map[string]struct {
		path, auth string
		length     int64
		code       int
	}{
		"no token":            {"/callback/" + jobID + "/complete", "", 1000, 401},
		"wrong token":         {"/callback/" + jobID + "/output?stream=stdout&offset=0", "wrong", -1, 404},
		"unknown job":         {"/callback/nobody/status", token, 1000, 404},
		"more than may come":  {"/callback/" + jobID + "/complete", token, callback.MaxReport + 1, 413},
		"more output than so": {"/callback/" + jobID + "/output?stream=stdout&offset=0", token, callback.MaxOutput + 1, 413},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest(http.MethodPost, tt.path, unreadable{t})
			req.ContentLength = tt.length
			req.Header.Set("Authorization", "Bearer "+tt.auth)
			w := httptest.NewRecorder()
			callback.Handler(&reporter{}, slog.New(slog.DiscardHandler)).ServeHTTP(w, req)
			if w.Code != tt.code {
				t.Errorf("answer %d %s, want %d", w.Code, w.Body, tt.code)
			}
		})
	}
}

func TestHandler_BoundsABodyOfUnknownLength(t *testing.T) {
	for route, limit := range map[string]int64{"complete": callback.MaxReport, "output?stream=stdout&offset=0": callback.MaxOutput} {
		r := &reporter{}
		req := httptest.NewRequest(http.MethodPost, "/callback/"+jobID+"/"+route, io.LimitReader(zeros{}, 10*callback.MaxOutput))
		req.ContentLength = -1
		req.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		callback.Handler(r, slog.New(slog.DiscardHandler)).ServeHTTP(w, req)
		if w.Code != http.StatusRequestEntityTooLarge || int64(r.output.Len()) > limit || len(r.reports) > 0 {
			t.Errorf("%s: %d, %d bytes taken, reports %v", route, w.Code, r.output.Len(), r.reports)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// hoarder withholds what could be the beginning of a secret, and records how
// much it was given at once.
type hoarder struct {
	reporter

	back, most int
}

func (h *hoarder) AppendOutput(ctx context.Context, id, tok, stream string, offset int64, data []byte) (int64, error) {
	h.most = max(h.most, len(data))
	held, err := h.reporter.AppendOutput(ctx, id, tok, stream, offset, data)
	if kept := max(offset, held-int64(h.back)); err == nil && kept < held {
		h.output.Truncate(int(kept))
		held = kept
	}
	return held, err
}

func TestOutput_IsTakenPieceByPiece(t *testing.T) {
	var sent bytes.Buffer
	for i := 0; sent.Len() < callback.MaxOutput; i++ {
		fmt.Fprintf(&sent, "line %d\n", i)
	}
	sent.Truncate(callback.MaxOutput)
	for _, back := range []int{0, 10, 100_000} {
		h := &hoarder{back: back}
		w := post(t, callback.Handler(h, slog.New(slog.DiscardHandler)), "/callback/"+jobID+"/output?stream=stdout&offset=0", token, sent.String())
		if want := sent.Bytes()[:callback.MaxOutput-back]; !bytes.Equal(h.output.Bytes(), want) || !strings.Contains(w.Body.String(), fmt.Sprintf(`"length":%d`, len(want))) {
			t.Errorf("%d held back: %d bytes held, answer %s", back, h.output.Len(), w.Body)
		}
		if limit := 64<<10 + back; h.most > limit {
			t.Errorf("%d bytes at once, %d would do", h.most, limit)
		}
	}
}

// within serves a reporter within bounds.
func within(t *testing.T, all, address int, stall, grace time.Duration, r callback.Reporter) *callback.Server {
	t.Helper()
	s, err := callback.ListenWithin(t.Context(), all, address, stall, grace, r, slog.New(slog.DiscardHandler))
	return serving(t, s, err)
}

// serving serves until the test ends.
func serving(t *testing.T, s *callback.Server, err error) *callback.Server {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(context.Background()), <-served); err != nil {
			t.Error(err)
		}
	})
	return s
}

// upload starts a request of size bytes and sends the first of them.
func upload(t *testing.T, s *callback.Server, auth string, size int, first string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_, err = fmt.Fprintf(c, "POST /callback/%s/output?stream=stdout&offset=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", jobID, auth, size, first)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// ends returns the status a connection is answered before it ends, 0 for none.
func ends(t *testing.T, c net.Conn) int {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		t.Fatal("the connection is still there after a minute")
	}
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// steady is a reporter that goroutines may use.
type steady struct {
	reporter

	mu    sync.Mutex
	taken chan string // what was appended
}

func (s *steady) AppendOutput(ctx context.Context, id, tok, stream string, offset int64, data []byte) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken != nil {
		s.taken <- string(data)
	}
	return s.reporter.AppendOutput(ctx, id, tok, stream, offset, data)
}

// next returns what was appended.
func next(t *testing.T, taken <-chan string) string {
	t.Helper()
	select {
	case data := <-taken:
		return data
	case <-time.After(time.Minute):
		t.Fatal("nothing was appended for a minute")
		return ""
	}
}

func TestServer_EndsUploadsThatStallOrDrip(t *testing.T) {
	t.Run("stalled", func(t *testing.T) {
		s := within(t, 10, 10, 50*time.Millisecond, time.Hour, &steady{})
		if code := ends(t, upload(t, s, token, 1000, "x")); code != http.StatusRequestTimeout {
			t.Errorf("answer %d", code)
		}
	})
	t.Run("dripping", func(t *testing.T) {
		s := within(t, 10, 10, time.Hour, 100*time.Millisecond, &steady{})
		c := upload(t, s, token, 1_000_000, "x")
		go func() {
			for { // 100 bytes a second are less than a tenth of what must come
				if _, err := c.Write([]byte("x")); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
		if code := ends(t, c); code != http.StatusRequestTimeout && code != 0 { // reset under what still came
			t.Errorf("answer %d", code)
		}
	})
	t.Run("refused, and goes on", func(t *testing.T) {
		s := within(t, 10, 10, time.Hour, time.Hour, &steady{})
		c := upload(t, s, "wrong", 100_000_000, "x")
		if code := ends(t, c); code != http.StatusNotFound {
			t.Errorf("answer %d", code)
		}
	})
}

func TestServer_BoundsAHeader(t *testing.T) {
	t.Run("that does not end", func(t *testing.T) {
		s, err := callback.ListenHeader(t.Context(), 50*time.Millisecond, &steady{}, slog.New(slog.DiscardHandler))
		s = serving(t, s, err)
		for _, first := range []string{"", "POST /callback/x/complete HTTP/1.1\r\nHost: x\r\nX-Slow: "} {
			c, err := net.Dial("tcp", s.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, first); err != nil {
				t.Fatal(err)
			}
			if code := ends(t, c); code != 0 && code != http.StatusRequestTimeout {
				t.Errorf("answer %d to %q", code, first)
			}
		}
	})
	t.Run("that is large", func(t *testing.T) {
		s := within(t, 10, 10, time.Hour, time.Hour, &steady{})
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "GET /health HTTP/1.1\r\nHost: x\r\nX-Large: %s\r\n\r\n", strings.Repeat("x", 16<<10)); err != nil {
			t.Fatal(err)
		}
		if code := ends(t, c); code != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("answer %d", code)
		}
	})
}

// A connection is for one request: none is kept open for a later one.
func TestServer_ClosesAfterEachResponse(t *testing.T) {
	s := within(t, 10, 10, time.Hour, time.Hour, &steady{})
	c, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if all, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 200 ") || !strings.Contains(string(all), "\r\nConnection: close\r\n") {
		t.Errorf("read %q, %v", all, err)
	}
}

// Who is there first and says nothing goes for who comes after; who has shown
// a token stays.
func TestServer_StrangersDelayNobody(t *testing.T) {
	taken := make(chan string, 1)
	s := within(t, 8, 5, time.Hour, time.Hour, &steady{taken: taken})
	honest := upload(t, s, token, 65537, strings.Repeat("x", 65536))
	next(t, taken) // it is in
	var silent []net.Conn
	for range 20 {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent = append(silent, c)
	}
	for i, c := range silent[:16] { // those the 4 places left were taken from
		if code := ends(t, c); code != 0 {
			t.Errorf("silent connection %d was answered %d", i, code)
		}
	}
	if code := ends(t, upload(t, s, "wrong", 1, "x")); code != http.StatusNotFound {
		t.Errorf("one more is answered %d", code)
	}
	if _, err := honest.Write([]byte("y")); err != nil {
		t.Fatal(err)
	}
	if last := next(t, taken); last != "y" {
		t.Errorf("the rest of the upload is %q", last)
	}
	if code := ends(t, honest); code != http.StatusOK {
		t.Errorf("the upload is answered %d", code)
	}
}

// All places of an address taken with the right token are its own affair: other
// addresses have theirs.
func TestServer_OneAddressLeavesRoomForOthers(t *testing.T) {
	taken := make(chan string, 10)
	s := within(t, 8, 3, time.Hour, time.Hour, &steady{taken: taken})
	for range 3 {
		upload(t, s, token, 65537, strings.Repeat("x", 65536))
		next(t, taken)
	}
	if code := ends(t, upload(t, s, token, 1, "x")); code != 0 {
		t.Errorf("a fourth of the address is answered %d", code)
	}
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := from.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := fmt.Fprint(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if code := ends(t, c); code != http.StatusOK {
		t.Errorf("another address is answered %d", code)
	}
}

func TestServer_OneJobHasFewRequestsAtOnce(t *testing.T) {
	taken := make(chan string, 10)
	s := within(t, 20, 20, time.Hour, time.Hour, &steady{taken: taken})
	var first net.Conn
	for i := range 4 {
		c := upload(t, s, token, 65537, strings.Repeat("x", 65536))
		next(t, taken)
		if i == 0 {
			first = c
		}
	}
	if code := ends(t, upload(t, s, token, 1, "x")); code != http.StatusServiceUnavailable {
		t.Errorf("a fifth is answered %d", code)
	}
	_, _ = first.Write([]byte("y"))
	if code := ends(t, first); code != http.StatusOK {
		t.Errorf("the first is answered %d", code)
	}
	if code := ends(t, upload(t, s, token, 1, "x")); code != http.StatusOK {
		t.Errorf("one when there is room is answered %d", code)
	}
}

// What stalls does not hold up the engine's end.
func TestServer_ClosesUnderAStalledUpload(t *testing.T) {
	taken := make(chan string, 1)
	s := within(t, 8, 8, time.Hour, time.Hour, &steady{taken: taken})
	c := upload(t, s, token, 65537, strings.Repeat("x", 65536))
	next(t, taken)
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if code := ends(t, c); code == http.StatusOK {
		t.Error("the upload was answered as whole")
	}
}

func TestServer_AddrLeadsToWhatIsListenedOn(t *testing.T) {
	for host, want := range map[string]string{"127.0.0.5": "127.0.0.5", "0.0.0.0": "127.0.0.1", "::1": "::1", "::": "127.0.0.1"} {
		s, err := callback.Listen(t.Context(), host, 0, &reporter{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Logf("%s: %v", host, err) // no IPv6 here
			continue
		}
		if got, _, _ := net.SplitHostPort(s.Addr()); got != want || s.Address().IsUnspecified() != net.ParseIP(host).IsUnspecified() {
			t.Errorf("CALLBACK_HOST %s: Addr %s, Address %s", host, s.Addr(), s.Address())
		}
		_ = s.Close(t.Context())
	}
}
