package mcptool

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"go.uber.org/goleak"

	"linus/internal/job"
	"linus/internal/leaktest"
)

// queue is a client's session as a test looks into it.
type queue struct {
	server.ClientSession
	all chan mcp.JSONRPCNotification
}

func newQueue() *queue { return &queue{all: make(chan mcp.JSONRPCNotification, 10)} }

func (*queue) SessionID() string                                     { return "q" }
func (q *queue) NotificationChannel() chan<- mcp.JSONRPCNotification { return q.all }

func TestProgress_SendsTheSameOnce(t *testing.T) {
	q := newQueue()
	p := &progress{session: q, token: "p"}
	p.send(job.Job{Status: job.Running, Phase: "run"})
	p.send(job.Job{Status: job.Running, Phase: "run"})
	if len(q.all) != 1 {
		t.Errorf("told %d times", len(q.all))
	}
}

func TestNotices_StartAfterTheSubscriptionIsAcknowledged(t *testing.T) {
	o := options(&engine{job: job.Job{ID: knownID, Status: job.Running}})
	o.notice = time.Hour
	s := newServer(o)
	defer s.close()
	q := newQueue()
	s.notices.add(t.Context(), subscriber{session: q, uri: outputURI}, nil)
	if s.notices.look(t.Context(), subject{job: knownID}); len(q.all) != 0 {
		t.Errorf("heard %v at once", <-q.all)
	}
}

// A client that lists jobs without end does not have the others wait for their notices.
func TestNotices_AreOfSoManyJobs(t *testing.T) {
	o := options(&engine{job: job.Job{ID: knownID, Status: job.Running}})
	o.notice = time.Hour
	s := newServer(o)
	defer s.close()
	uris := make([]string, 1000)
	for i := range uris {
		uris[i] = strings.Replace(outputURI, knownID, fmt.Sprint("job-", i), 1)
	}
	s.notices.subscribe(t.Context(), newQueue(), 1, uris)
	if n := len(s.notices.jobs()); n != mostURIs {
		t.Errorf("looks at %d", n)
	}
}

func TestClose_EndsWhatSubscribersHaveLeft(t *testing.T) {
	before := goleak.IgnoreCurrent()
	o := options(&engine{job: job.Job{ID: knownID, Status: job.Running}})
	o.notice = time.Hour
	h := NewHTTP(o)
	h.server.notices.add(t.Context(), subscriber{session: newQueue(), uri: outputURI}, nil)
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
	input := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n" +
		`{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"` + outputURI + `"}}` + "\n"
	var out strings.Builder
	if err := NewStdio(o).Serve(t.Context(), strings.NewReader(input), &out); err != nil || strings.Contains(out.String(), "error") {
		t.Errorf("%v, %s", err, out.String())
	}
	leaktest.None(t, before)
}

func TestHTTP_KnowsWhichSessionsHaveAStream(t *testing.T) {
	o := options(&engine{job: job.Job{ID: knownID, Status: job.Running}})
	h := NewHTTP(o)
	s := httptest.NewServer(h)
	defer s.Close()
	defer h.Close(context.Background()) //nolint:errcheck // tested elsewhere
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	session := sessionsOf{sessions: h.sessions, holder: "/"}.Generate()
	req.Header.Set(server.HeaderKeySessionID, session)
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	open := func() int {
		h.server.notices.mu.Lock()
		defer h.server.notices.mu.Unlock()
		return h.server.notices.streams[session]
	}
	if n := open(); n != 1 {
		t.Errorf("%d streams", n)
	}
	cancel()
	_ = resp.Body.Close()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if open() == 0 {
			return
		}
	}
	t.Error("the end of the stream was not noticed")
}

// A client that listens only for what is not offered gets an empty
// acknowledgement, and then the result.
func TestListen_AcknowledgesBeforeItEnds(t *testing.T) {
	h := NewHTTP(options(&engine{}))
	s := httptest.NewServer(h)
	t.Cleanup(func() {
		s.Close()
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	body := `{"jsonrpc":"2.0","id":7,"method":"subscriptions/listen","params":{` + meta + `,"notifications":{"toolsListChanged":true}}}`
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen",
	} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(resp.Body)
	said := string(data)
	ack, end := strings.Index(said, "notifications/subscriptions/acknowledged"), strings.Index(said, `"result"`)
	if err != nil || ack < 0 || end < ack {
		t.Errorf("%v: %s", err, said)
	}
}
