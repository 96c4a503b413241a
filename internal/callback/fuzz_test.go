package callback_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"linus/internal/callback"
)

// Whatever a VM sends, the response is JSON, of a status the contract names, and
// only an accepted body is recorded.
func FuzzHandler(f *testing.F) {
	for _, body := range []string{
		`{"job_id":"` + jobID + `","status":"success","exit_code":0,"output":"","duration_seconds":1.5}`,
		`{"status":"failed","exit_code":-1,"reason":"lost","error":"x","duration_seconds":0}`,
		`{"progress":"50%"}`, `{}`, `[]`, `null`, `{"exit_code":1e400}`, "\xff\x00",
	} {
		f.Add("complete", "", []byte(body))
		f.Add("status", "", []byte(body))
		f.Add("heartbeat", "", []byte(body))
	}
	f.Add("output", "stream=stdout&offset=0", []byte("raw \xff bytes"))
	f.Add("output", "stream=stderr&offset=-1", []byte("x"))
	f.Add("output", "stream=&offset=99999999999999999999", []byte("x"))
	f.Fuzz(func(t *testing.T, what, query string, body []byte) {
		known := &reporter{}
		h := callback.Handler(known, slog.New(slog.DiscardHandler))
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body))
		r.URL.Path, r.URL.RawQuery = "/callback/"+jobID+"/"+what, query
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code/100 == 3 { // a path with dots or slashes is redirected to its clean form
			return
		}
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("status %d with a body that is not JSON: %q", w.Code, w.Body)
		}
		taken := len(known.reports) + known.output.Len()
		switch w.Code {
		case http.StatusOK:
			if what != "output" && taken == 0 {
				t.Errorf("answered %q and recorded nothing", w.Body)
			}
		case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge:
			if taken != 0 {
				t.Errorf("status %d, but recorded %v", w.Code, known.reports)
			}
		default:
			t.Errorf("status %d: %q", w.Code, w.Body)
		}
	})
}
