package mcptool

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
	"go.uber.org/goleak"

	"linus/internal/job"
	"linus/internal/leaktest"
)

func readURI(t *testing.T, c *client.Client, uri string) ([]mcp.ResourceContents, error) {
	t.Helper()
	var req mcp.ReadResourceRequest
	req.Params.URI = uri
	r, err := c.ReadResource(t.Context(), req)
	if err != nil {
		return nil, err
	}
	return r.Contents, nil
}

func TestResources_AreOutputResultAndArtifacts(t *testing.T) {
	artifacts := []string{"dist/app.txt", "a b/ü?#%.bin", "new\nline", "huge"}
	e := &engine{out: "out\n", err2: "err\n", job: job.Job{ID: knownID, Status: job.Success}, result: job.Result{JobID: knownID, Status: job.Success, Stdout: []byte("out\n")}}
	for _, path := range artifacts {
		e.job.Artifacts = append(e.job.Artifacts, job.Artifact{Path: path, Size: int64(len("of " + path)), SHA256: "abc", Mode: "0644"})
	}
	e.job.Artifacts[3].Size = 9 << 20
	for way, connect := range transports {
		t.Run(way, func(t *testing.T) {
			c := connect(t, e)
			contents, err := readURI(t, c, "linus://jobs/"+knownID+"/output")
			if err != nil || len(contents) != 2 || contents[0].(mcp.TextResourceContents).Text != "out\n" || contents[1].(mcp.TextResourceContents).Text != "err\n" {
				t.Errorf("output %v, %v", contents, err)
			}
			contents, err = readURI(t, c, "linus://jobs/"+knownID+"/result")
			if err != nil || len(contents) != 1 || !strings.Contains(contents[0].(mcp.TextResourceContents).Text, `"output":"out\n"`) {
				t.Errorf("result %v, %v", contents, err)
			}
			r := callTool(t, c, "get_job_result", map[string]any{"job_id": knownID})
			const before = 2 // the JSON and the output
			if len(r.Content) != before+len(artifacts) {
				t.Fatalf("the result has %d parts", len(r.Content))
			}
			for i, path := range artifacts[:3] {
				link, ok := r.Content[before+i].(mcp.ResourceLink)
				if !ok || link.Name != path {
					t.Fatalf("link %+v", r.Content[before+i])
				}
				contents, err := readURI(t, c, link.URI)
				if err != nil || len(contents) != 1 || contents[0].(mcp.TextResourceContents).Text != "of "+path {
					t.Errorf("%s: %v, %v", link.URI, contents, err)
				}
			}
			for uri, want := range map[string]string{
				"linus://jobs/x/output":                              "Job not found. Use list_jobs",
				"linus://jobs/" + knownID + "/artifacts/huge":        "linus job artifacts get",
				"linus://jobs/" + knownID + "/artifacts/none":        "no artifact",
				"linus://jobs/" + knownID + "/artifacts/%2e%2e/none": "no artifact",
			} {
				if contents, err := readURI(t, c, uri); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v, %v; want an error with %q", uri, contents, err, want)
				}
			}
		})
	}
}

// binary is an engine whose artifact is not text.
type binary struct{ *engine }

func (binary) OpenArtifact(context.Context, string, string) (io.ReadCloser, job.Artifact, error) {
	return io.NopCloser(strings.NewReader("\x00\xff")), job.Artifact{Path: "a.png", Size: 2}, nil
}

func TestResources_BinaryArtifactsAreBlobs(t *testing.T) {
	c := transports["in process"](t, binary{&engine{}})
	contents, err := readURI(t, c, "linus://jobs/"+knownID+"/artifacts/a.png")
	if err != nil || len(contents) != 1 {
		t.Fatal(contents, err)
	}
	blob, ok := contents[0].(mcp.BlobResourceContents)
	if data, _ := base64.StdEncoding.DecodeString(blob.Blob); !ok || string(data) != "\x00\xff" || blob.MIMEType != "image/png" {
		t.Errorf("%+v", contents[0])
	}
}

// rawRequest sends what mcp-go's client has no method for.
func rawRequest(t *testing.T, c *client.Client, method string, params any) error {
	t.Helper()
	resp, err := c.GetTransport().SendRequest(t.Context(), transport.JSONRPCRequest{
		JSONRPC: mcp.JSONRPC_VERSION, ID: mcp.NewRequestId(method), Method: method, Params: params,
	})
	if err == nil && resp.Error != nil {
		err = fmt.Errorf("%s: %s", method, resp.Error.Message)
	}
	return err
}

const outputURI = "linus://jobs/" + knownID + "/output"

// subscribe asks to hear of the job's output, in the words of the client's era,
// and returns how to end that.
func subscribe(t *testing.T, c *client.Client, legacy bool) (end func()) {
	t.Helper()
	if legacy {
		request := func(method string) {
			if err := rawRequest(t, c, method, map[string]any{"uri": outputURI}); err != nil {
				t.Fatal(err)
			}
		}
		request("resources/subscribe")
		return func() { request("resources/unsubscribe") }
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.Listen(ctx, mcp.SubscriptionFilter{ResourceSubscriptions: []string{outputURI}})
	}()
	return func() {
		cancel()
		<-done
	}
}

func TestSubscription_IsNotifiedOfNewOutputAtABoundedRateAndOfTheEnd(t *testing.T) {
	for way, connect := range transports {
		t.Run(way, func(t *testing.T) {
			e := &engine{job: job.Job{ID: knownID, Status: job.Running}}
			c := connect(t, e)
			updates := listen(c, mcp.MethodNotificationResourceUpdated)
			end := subscribe(t, c, strings.Contains(way, "2025") || way == "in process")
			defer end()
			updates.await(t, 1) // that it is looked after
			began := time.Now()
			stop := make(chan struct{})
			go func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
						e.change(func() { e.out += "." })
					}
				}
			}()
			all := updates.await(t, 3)
			close(stop)
			if took := time.Since(began); took < 100*time.Millisecond {
				t.Errorf("2 updates in %s", took)
			}
			if all[1]["uri"] != outputURI {
				t.Errorf("update %v", all[1])
			}
			e.change(func() { e.job.Status = job.Success })
			n := len(updates.list())
			updates.await(t, n+1)
		})
	}
}

func subscribed(n *notices) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.all) > 0
}

func TestSubscription_EndsAndLeavesNothing(t *testing.T) {
	e := &engine{job: job.Job{ID: knownID, Status: job.Running}}
	o := options(e)
	gone := func(t *testing.T, n *notices) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			n.mu.Lock()
			left, running := len(n.all), n.cancel != nil
			n.mu.Unlock()
			if left == 0 && !running {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d subscriptions are left, looked after: %v", left, running)
			}
		}
	}
	start := func(t *testing.T) (*mcpServer, *client.Client) {
		t.Helper()
		s := newServer(o)
		t.Cleanup(s.close)
		c, err := client.NewInProcessClient(s.MCPServer)
		return s, begin(t, c, err)
	}
	t.Run("unsubscribed", func(t *testing.T) {
		s, c := start(t)
		subscribe(t, c, true)()
		gone(t, s.notices)
	})
	t.Run("the client goes away", func(t *testing.T) {
		s, c := start(t)
		subscribe(t, c, true)
		_ = c.Close()
		gone(t, s.notices)
	})
	t.Run("the stream of the newer protocol ends", func(t *testing.T) {
		s, c := start(t)
		end := subscribe(t, c, false)
		for deadline := time.Now().Add(time.Minute); !subscribed(s.notices); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nobody is subscribed")
			}
		}
		end()
		gone(t, s.notices)
	})
	t.Run("the job is not there", func(t *testing.T) {
		s, c := start(t)
		if err := rawRequest(t, c, "resources/subscribe", map[string]any{"uri": "linus://jobs/none/output"}); err != nil {
			t.Fatal(err)
		}
		gone(t, s.notices)
	})
	t.Run("nothing that changes", func(t *testing.T) {
		s, c := start(t)
		if err := rawRequest(t, c, "resources/subscribe", map[string]any{"uri": "linus://jobs/" + knownID + "/result"}); err != nil {
			t.Fatal(err)
		}
		gone(t, s.notices)
	})
	t.Run("a client that does not read", func(t *testing.T) {
		s := newServer(o)
		defer s.close()
		deaf := &deafSession{}
		s.notices.add(t.Context(), subscriber{session: deaf, uri: outputURI}, nil)
		gone(t, s.notices)
	})
	t.Run("a stream that is not opened again", func(t *testing.T) {
		s := newServer(o)
		defer s.close()
		deaf := &deafSession{}
		closed := s.notices.stream(deaf.SessionID())
		s.notices.add(t.Context(), subscriber{session: deaf, uri: outputURI}, nil)
		closed()
		if len(s.notices.jobs()) != 1 {
			t.Error("it is forgotten at once")
		}
		s.notices.stream(deaf.SessionID())()
		s.notices.mu.Lock()
		s.notices.away[deaf.SessionID()] = time.Now().Add(-graceTime)
		s.notices.mu.Unlock()
		if len(s.notices.jobs()) != 0 {
			t.Error("it is remembered for ever")
		}
	})
}

// deafSession is a client whose queue is full.
type deafSession struct{ server.ClientSession }

func (*deafSession) SessionID() string                                   { return "deaf" }
func (*deafSession) NotificationChannel() chan<- mcp.JSONRPCNotification { return nil }

// A client that vanishes without a word leaves nothing behind.
func TestHTTP_DisconnectLeavesNoGoroutine(t *testing.T) {
	before := goleak.IgnoreCurrent()
	e := &engine{job: job.Job{ID: knownID, Status: job.Running}}
	h := NewHTTP(options(e))
	s := httptest.NewServer(h)
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":[%q]},`+
		`"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`,
		outputURI, mcp.ProtocolVersion20260728)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set(mcp.HeaderProtocolVersion, mcp.ProtocolVersion20260728)
	req.Header.Set("Mcp-Method", "subscriptions/listen")
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 1<<10)
	if n, err := resp.Body.Read(buffer); err != nil || !strings.Contains(string(buffer[:n]), "acknowledged") {
		t.Fatalf("%d %q, %v", resp.StatusCode, buffer[:n], err)
	}
	cancel()
	_ = resp.Body.Close()
	closing, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		h.server.notices.mu.Lock()
		left := len(h.server.notices.all)
		h.server.notices.mu.Unlock()
		if left == 0 {
			break
		}
	}
	h.server.notices.mu.Lock()
	if left := len(h.server.notices.all); left != 0 {
		t.Errorf("%d subscriptions are left", left)
	}
	h.server.notices.mu.Unlock()
	if err := h.Close(closing); err != nil {
		t.Error(err)
	}
	s.Close()
	leaktest.None(t, before)
}

func TestResources_ManifestHasItsWholeSchema(t *testing.T) {
	c := transports["in process"](t, &engine{})
	r, err := c.ReadResource(t.Context(), mcp.ReadResourceRequest{Params: mcp.ReadResourceParams{URI: manifestURI}})
	if err != nil || len(r.Contents) != 1 {
		t.Fatalf("%v, %v", r, err)
	}
	contents, _ := r.Contents[0].(mcp.TextResourceContents)
	if !strings.Contains(contents.Text, "at most 128 KiB each") || !strings.Contains(contents.Text, `"additionalProperties":false`) || contents.MIMEType != "application/schema+json" {
		t.Errorf("it is %.200s", contents.Text)
	}
}

func TestResources_Usage(t *testing.T) {
	c := transports["in process"](t, &engine{})
	for by, want := range map[string]string{"all": `"of":"by "`, "repository": `"of":"by repository"`, "label=a/b": `"of":"by label=a/b"`, "label%3Dteam": `"of":"by label=team"`} {
		contents, err := readURI(t, c, "linus://usage/"+by)
		if err != nil || len(contents) != 1 || !strings.Contains(contents[0].(mcp.TextResourceContents).Text, want) || !strings.Contains(contents[0].(mcp.TextResourceContents).Text, `"vm_hours":1.5`) {
			t.Errorf("by %s: %v, %v", by, contents, err)
		}
	}
	if contents, err := readURI(t, c, "linus://usage/colour"); err == nil || !strings.Contains(err.Error(), "use one of: principal") {
		t.Errorf("by what there is not: %v, %v", contents, err)
	}
}
