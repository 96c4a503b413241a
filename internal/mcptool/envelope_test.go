package mcptool

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"linus/internal/job"
)

// session is a client of one stdio server that writes its messages itself.
type rawSession struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

func rawStdio(t *testing.T, e job.Engine) rawSession {
	t.Helper()
	toServer, in := io.Pipe()
	out, fromServer := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- NewStdio(options(e)).Serve(context.Background(), toServer, fromServer)
		_ = fromServer.Close()
	}()
	t.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return rawSession{t, in, bufio.NewReader(out)}
}

func (s rawSession) send(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, text); err != nil {
		s.t.Fatal(err)
	}
}

// line returns the next line without its end.
func (s rawSession) line() string {
	s.t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatalf("stdout ends: %v", err)
	}
	return strings.TrimSpace(line)
}

func hello(version string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + version + `","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n"
}

func toolCall(id, tool, args, meta string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":%s}}`+"\n", id, tool, args, meta)
}

// idOf returns a message's ID, or the token of a progress notification, as it is written.
func idOf(t *testing.T, line string) (id, token string) {
	t.Helper()
	var m struct {
		ID     json.RawMessage
		Params struct {
			Token json.RawMessage `json:"progressToken"`
		}
	}
	if err := json.Unmarshal([]byte(line), &m); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return string(m.ID), string(m.Params.Token)
}

var exactNumbers = []string{"9007199254740992", "9007199254740993", "-9223372036854775807", "18446744073709551617", "0.1234567890123456789"}

func TestStdio_IDsAndProgressTokensAreReturnedAsTheyWere(t *testing.T) {
	e := &engine{job: job.Job{ID: knownID, Phase: "run", Progress: "1"}}
	s := rawStdio(t, e)
	s.send(hello("2025-11-25"))
	s.line()
	for _, n := range exactNumbers {
		s.send(toolCall(n, "list_jobs", "{}", "{}"))
		if id, _ := idOf(t, s.line()); id != n {
			t.Errorf("the answer to %s has the ID %s", n, id)
		}
		s.send(`{"jsonrpc":"2.0","id":` + n + `,"method":"ping"}` + "\n")
		if id, _ := idOf(t, s.line()); id != n {
			t.Errorf("the answer to ping %s has the ID %s", n, id)
		}
		s.send(`{"jsonrpc":"2.0","id":` + n + `,"method":"nonsense"}` + "\n")
		if id, _ := idOf(t, s.line()); id != n {
			t.Errorf("the error of %s has the ID %s", n, id)
		}
		e.change(func() { e.job.Status = job.Running })
		s.send(toolCall("7", "get_job_status", `{"job_id":"`+knownID+`","wait_seconds":40}`, `{"progressToken":`+n+`}`))
		if _, token := idOf(t, s.line()); token != n {
			t.Errorf("progress for %s has the token %s", n, token)
		}
		e.change(func() { e.job.Status = job.Failed })
		for id := ""; id != "7"; {
			id, _ = idOf(t, s.line())
		}
	}
}

func TestStdio_CallsWithNeighbouringIDsAreCancelledApart(t *testing.T) {
	e := &engine{job: job.Job{ID: knownID, Status: job.Running, Phase: "run", Progress: "1"}}
	s := rawStdio(t, e)
	s.send(hello("2025-11-25"))
	s.line()
	for _, id := range exactNumbers[:2] {
		s.send(toolCall(id, "get_job_status", `{"job_id":"`+knownID+`","wait_seconds":40}`, `{"progressToken":1}`))
		s.line() // its progress: it has begun
	}
	s.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + exactNumbers[1] + `}}` + "\n")
	if id, _ := idOf(t, s.line()); id != exactNumbers[1] {
		t.Errorf("%s was cancelled, but %s has ended", exactNumbers[1], id)
	}
	e.change(func() { e.job.Status = job.Failed })
	if id, _ := idOf(t, s.line()); id != exactNumbers[0] {
		t.Errorf("the other answer has the ID %s", id)
	}
}

func TestStdio_WhatATaskWritesIsNoID(t *testing.T) {
	e := &engine{job: job.Job{ID: knownID, Status: job.Running}, out: "9007199254740993"}
	s := rawStdio(t, e)
	s.send(hello("2025-11-25"))
	s.line()
	s.send(toolCall(exactNumbers[1], "get_job_output", `{"job_id":"`+knownID+`"}`, "{}"))
	line := s.line()
	if !strings.Contains(line, `"stdout":"9007199254740993"`) || !strings.Contains(line, `"id":9007199254740993`) {
		t.Error(line)
	}
}

func TestStdio_TakesAByteOrderMarkAndBlankLines(t *testing.T) {
	s := rawStdio(t, &engine{})
	for _, one := range []struct{ id, text string }{{"1", "\ufeff" + hello("2025-11-25")}, {"2", "\n\r\n  \n" + `{"jsonrpc":"2.0","id":2,"method":"ping"}` + "\n"}} {
		s.send(one.text)
		if line := s.line(); !strings.Contains(line, `"id":`+one.id) || strings.Contains(line, `"error"`) {
			t.Errorf("answer %s is %s", one.id, line)
		}
	}
}

const batchText = `[{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":"b","method":"tools/call","params":{"name":"list_jobs","arguments":{}}}]`

// batched returns the IDs in an answer to a batch.
func batched(t *testing.T, text string) []string {
	t.Helper()
	var all []struct{ ID, Result json.RawMessage }
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatalf("%q is not an answer to a batch: %v", text, err)
	}
	var ids []string
	for _, one := range all {
		if one.Result == nil {
			t.Errorf("%s has no result: %s", one.ID, text)
		}
		ids = append(ids, string(one.ID))
	}
	slices.Sort(ids)
	return ids
}

func TestStdio_BatchesOf20250326(t *testing.T) {
	s := rawStdio(t, &engine{})
	s.send(hello("2025-03-26"))
	s.line()
	s.send(batchText + "\n")
	if ids := batched(t, s.line()); !slices.Equal(ids, []string{`"b"`, "9007199254740993"}) {
		t.Errorf("answered %v", ids)
	}
	s.send(`[{"jsonrpc":"2.0","method":"notifications/initialized"}]` + "\n" + "[]\n")
	if line := s.line(); !strings.Contains(line, `"code":-32600`) {
		t.Errorf("a batch of nothing is answered %s", line)
	}
	s.send(`[1,{"jsonrpc":"2.0","id":3,"method":"ping"}]` + "\n")
	if line := s.line(); !strings.Contains(line, `"code":-32600`) {
		t.Errorf("a batch with what is no message is answered %s", line)
	}

	s = rawStdio(t, &engine{})
	s.send(hello("2025-06-18"))
	s.line()
	s.send(batchText + "\n")
	if line := s.line(); !strings.Contains(line, `"code":-32600`) || !strings.Contains(line, "2025-03-26") {
		t.Errorf("a batch of another version is answered %s", line)
	}
}

func TestHTTP_EnvelopesAreTakenAsOnStdio(t *testing.T) {
	e := &engine{job: job.Job{ID: knownID, Status: job.Running, Phase: "run", Progress: "1"}}
	h := NewHTTP(options(e))
	t.Cleanup(func() { _ = h.Close(context.Background()) })
	session := ""
	post := func(body, version string) (int, string) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			r.Header.Set("Mcp-Session-Id", session)
		}
		if version != "" {
			r.Header.Set("Mcp-Protocol-Version", version)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if id := w.Header().Get("Mcp-Session-Id"); id != "" {
			session = id
		}
		return w.Code, w.Body.String()
	}
	if code, body := post("\ufeff"+hello("2025-03-26"), ""); code != http.StatusOK {
		t.Fatalf("initialize: %d %s", code, body)
	}
	for _, n := range exactNumbers {
		if _, body := post(toolCall(n, "list_jobs", "{}", "{}"), ""); !strings.Contains(body, `"id":`+n) {
			t.Errorf("the answer to %s is %s", n, body)
		}
	}
	for tries := 1; ; tries++ { // mcp-go may give a notification to what is left of the request before, which has ended
		_, body := post(toolCall("7", "get_job_status", `{"job_id":"`+knownID+`","wait_seconds":1}`, `{"progressToken":`+exactNumbers[1]+`}`), "")
		if strings.Contains(body, `"progressToken":`+exactNumbers[1]+",") {
			break
		}
		if tries == 10 || strings.Contains(body, "progressToken") {
			t.Fatalf("its progress is %s", body)
		}
	}
	code, body := post(batchText, "")
	if ids := batched(t, body); code != http.StatusOK || !slices.Equal(ids, []string{`"b"`, "9007199254740993"}) {
		t.Errorf("the batch is answered %d %v", code, ids)
	}
	if code, body := post(`[{"jsonrpc":"2.0","method":"notifications/initialized"}]`, ""); code != http.StatusAccepted || body != "" {
		t.Errorf("a batch without requests is answered %d %s", code, body)
	}
	if code, body := post(batchText, "2025-06-18"); code != http.StatusBadRequest || !strings.Contains(body, "2025-03-26") {
		t.Errorf("a batch of another version is answered %d %s", code, body)
	}
	if code, body := post("["+strings.Repeat(`{"jsonrpc":"2.0","method":"x"},`, 100)+`{"jsonrpc":"2.0","method":"x"}]`, ""); code != http.StatusBadRequest {
		t.Errorf("a batch of 101 is answered %d %s", code, body)
	}
}

func TestTools_TakeArgumentsAsClientsSendThem(t *testing.T) {
	tests := []struct{ name, tool, args, want string }{
		{"a whole number with a point", "list_jobs", `{"limit":5.0}`, ""},
		{"one with an exponent", "list_jobs", `{"limit":1e1}`, ""},
		{"null for what is optional", "list_jobs", `{"limit":null,"status":null,"label":null}`, ""},
		{"null in a manifest", "submit_job", `{"manifest":{"task":"ls","agentType":"script","timeout":null,"resources":{"cpu":null,"memory":"1G"},"files":null},"wait_seconds":null}`, ""},
		{"null for what is required", "get_job_status", `{"job_id":null}`, "job_id"},
		{"a manifest with a point", "submit_job", `{"manifest":{"task":"ls","agentType":"script","timeout":60.0,"resources":{"cpu":2.0}}}`, ""},
		{"no whole number", "list_jobs", `{"limit":5.5}`, "limit: 5.5 is not a whole number"},
		{"given twice", "list_jobs", `{"limit":5.0,"limit":null}`, "limit: is given twice"},
		{"null for a variable", "submit_job", `{"manifest":{"task":"ls","agentType":"script","env":{"A":null}}}`, "manifest.env.A: is null"},
		{"a task without a manifest", "submit_job", `{"task":"ls","timeout":60,"idempotency_key":"k"}`, ""},
		{"a manifest without an agentType", "submit_job", `{"manifest":{"task":"ls"}}`, ""},
		{"what is wrong beside a task", "submit_job", `{"task":"ls","timeot":60}`, "manifest.timeot"},
		{"neither", "submit_job", `{"wait_seconds":1}`, `give an object such as {\"task\": \"uname -a\"}`},
		{"an object as a string", "list_jobs", `"{\"limit\":5}"`, ""},
		{"a string", "list_jobs", `"limit"`, "arguments: is a string, want an object"},
		{"a list", "list_jobs", `[1]`, "arguments: is an array, want an object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := rawStdio(t, &engine{job: job.Job{ID: knownID, Status: job.Running}})
			s.send(hello("2025-11-25"))
			s.line()
			s.send(toolCall("2", tt.tool, tt.args, "{}"))
			line := s.line()
			if failed := strings.Contains(line, `"isError":true`); failed != (tt.want != "") || !strings.Contains(line, tt.want) {
				t.Errorf("got %s", line)
			}
		})
	}
}

func TestNumbers_LeaveOtherMessagesAsTheyAre(t *testing.T) {
	n := newNumbers()
	for _, message := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":"9007199254740993","method":"ping"}`,
		`{"jsonrpc":"2.0","id":9007199254740991,"method":"ping","params":{"_meta":{"progressToken":4}}}`,
		`{"jsonrpc":"2.0","id":18446744073709551617,"result":{}}`, // the server asked nothing by that
		"hello", "", "[]",
	} {
		if got := n.hide([]byte(message)); !bytes.Equal(got, []byte(message)) {
			t.Errorf("%s becomes %s", message, got)
		}
	}
}

func TestNumbers_AMessageThatIsNotDecodedHasNoneToHide(t *testing.T) {
	for _, number := range []string{"1.0", "1e3", "1E400", "-0", "9007199254740993", "1000000000000000000000", "0.1", "-9007199254740993"} {
		if message := `{"id":` + number + `}`; inexact([]byte(number)) && onlyShortNumbers([]byte(message)) || onlyShortNumbers([]byte(number+"7.0")) {
			t.Errorf("%s is not looked at", message)
		}
	}
	for _, message := range []string{`{"id":999999999999999,"method":"a-1.5e\"9007199254740993"}`, `{"id":1}`, ""} {
		if !onlyShortNumbers([]byte(message)) {
			t.Errorf("%s is decoded for its numbers", message)
		}
	}
}
