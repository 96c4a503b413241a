package daemon

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/view"
)

// apiRig is an engine behind the API, and the API's document.
type apiRig struct {
	t        *testing.T
	url      string
	compiler *jsonschema.Compiler
	paths    map[string]map[string]operation
}

type operation struct {
	ID         string `json:"operationId"`
	Parameters []parameter
	Responses  map[string]json.RawMessage

	method, path string
}

type parameter struct{ Name, In string }

// verbOf returns the name of the verb of an operation.
func verbOf(id string) string {
	for _, v := range job.Verbs() {
		if v.ID == id {
			return v.Name
		}
	}
	return map[string]string{"getInfo": "Info", "listArtifacts": "Artifacts"}[id]
}

func newAPIRig(t *testing.T) *apiRig {
	e := newEngine(t)
	if err := e.start(t.Context(), func(error) {}); err != nil {
		t.Fatal(err)
	}
	api := control.API(e.guarded, control.APIOptions{Version: "v1"})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		api.ServeHTTP(w, r.WithContext(job.WithPrincipal(r.Context(), job.Operator())))
	}))
	t.Cleanup(func() {
		s.Close()
		_ = e.close(t.Context())
	})
	r := &apiRig{t: t, url: s.URL, compiler: jsonschema.NewCompiler()}
	_, text := r.send("GET", "/api/v1/openapi.json", "")
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err == nil {
		err = r.compiler.AddResource("https://linus.example/openapi.json", doc)
	}
	var parsed struct {
		Paths map[string]map[string]operation
	}
	if err == nil {
		err = json.Unmarshal(text, &parsed)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.paths = parsed.Paths
	return r
}

func (r *apiRig) send(method, path, body string) (int, []byte) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, data
}

// call makes a request of an operation, checks the response against its schema, and
// returns the status and the response.
func (r *apiRig) call(o operation, values map[string]string, body string) (int, []byte) {
	r.t.Helper()
	path, query := o.path, url.Values{}
	for _, p := range o.Parameters {
		switch value := values[p.Name]; {
		case p.In == "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", url.PathEscape(value))
		case p.In == "query" && value != "":
			query.Set(p.Name, value)
		}
	}
	status, data := r.send(strings.ToUpper(o.method), path+"?"+query.Encode(), body)
	at := "#/components/schemas/Problem"
	if code := strconv.Itoa(status); status/100 == 2 {
		var ok struct{ Content map[string]json.RawMessage }
		if err := json.Unmarshal(o.Responses[code], &ok); err != nil {
			r.t.Fatalf("%s has no response %s: %v", o.ID, code, err)
		}
		if _, isJSON := ok.Content["application/json"]; !isJSON {
			return status, data
		}
		escape := strings.NewReplacer("~", "~0", "/", "~1")
		at = "#/paths/" + url.PathEscape(escape.Replace(o.path)) + "/" + o.method + "/responses/" + code + "/content/application~1json/schema"
	}
	schema, err := r.compiler.Compile("https://linus.example/openapi.json" + at)
	if err != nil {
		r.t.Fatalf("%s: %v", o.ID, err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err == nil {
		err = schema.Validate(value)
	}
	if err != nil {
		r.t.Errorf("%s: %d %.600s: %v", o.ID, status, data, err)
	}
	return status, data
}

// Every operation of the document is there, and its response is as the document says.
func TestAPI_RespondsAsItsDocumentSays(t *testing.T) {
	r := newAPIRig(t)
	all := map[string]operation{}
	for path, methods := range r.paths {
		for method, o := range methods {
			o.method, o.path = method, path
			o.ID = verbOf(o.ID)
			all[o.ID] = o
		}
	}
	values := map[string]string{"vm": "dev", "pool": "p", "node": "pve", "snapshot": "clean", "signal": "INT", "path": "x", "port": "1", "stream": "stdout", "rows": "24", "columns": "80", "older_than_seconds": "3600"}
	submit := func(verb, body string) string {
		t.Helper()
		status, data := r.call(all[verb], nil, body)
		var j job.Job
		if err := view.Unmarshal(data, &j); err != nil || status/100 != 2 {
			t.Fatalf("%s: %d %s, %v", verb, status, data, err)
		}
		for deadline := time.Now().Add(time.Minute); !j.Status.Terminal(); time.Sleep(10 * time.Millisecond) {
			_, data := r.call(all["Job"], map[string]string{"id": j.ID}, "")
			if err := view.Unmarshal(data, &j); err != nil || time.Now().After(deadline) {
				t.Fatalf("the job is %s: %v", j.Status, err)
			}
		}
		return j.ID
	}
	submit("CreateVM", `{"manifest":{"vm_name":"dev"}}`)
	values["id"] = submit("Submit", `{"manifest":{"task":"true","agent_type":"script"}}`)
	bodies := map[string]string{
		"Submit": `{"manifest":{"task":"true","agent_type":"script","env":{"A":"b"}}}`, "Plan": `{"manifest":{"vm_name":"other"}}`, "CreateVM": `{"manifest":{"vm_name":"more"}}`,
		"CreatePool": `{"name":"p","warm":0}`, "ResizePool": `{"warm":0}`, "Input": "x",
		"WriteFile": "x", "SetVM": `{"idle_suspend_seconds":600}`, "ForkVM": `{"name":"copy-%d","ttl_seconds":600}`, "SnapshotVM": `{"name":"clean"}`, "Kill": `{"signal":"INT"}`, "Resize": `{"rows":24,"columns":80}`, "EditFile": `{"old":"x","new":"y"}`,
	}
	order := []string{"Submit", "Plan", "CreateVM", "Job", "Result", "List", "Watch", "Output", "VMs", "VM", "CreatePool", "Pool", "Pools", "ResizePool", "WriteFile", "ReadFile", "ListFiles", "SnapshotVM", "ListSnapshots", "SetVM", "ForkVM", "StopVM", "StartVM", "RevertVM", "DeleteSnapshot"}
	last := []string{"RemovePool", "DestroyVM", "ForgetVM", "Cleanup"}
	for id := range all {
		if !slices.Contains(order, id) && !slices.Contains(last, id) {
			order = append(order, id)
		}
	}
	var worked []string
	for _, id := range append(order, last...) {
		if _, there := all[id]; !there {
			t.Errorf("there is no operation %s", id)
			continue
		}
		if status, data := r.call(all[id], values, bodies[id]); status/100 == 2 {
			worked = append(worked, id)
		} else {
			t.Logf("%s: %d %.200s", id, status, data)
		}
	}
	for _, id := range []string{"Submit", "Plan", "CreateVM", "Job", "Result", "List", "Watch", "Output", "VMs", "VM", "CreatePool", "Pool", "Pools", "RemovePool", "Cleanup", "CheckHost", "Engines", "Info", "WriteFile", "ReadFile", "ListFiles", "SnapshotVM", "ListSnapshots", "SetVM", "ForkVM", "StopVM", "StartVM", "RevertVM", "DeleteSnapshot", "DestroyVM"} {
		if !slices.Contains(worked, id) {
			t.Errorf("%s did not work", id)
		}
	}
}
