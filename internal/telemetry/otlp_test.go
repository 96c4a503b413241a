package telemetry

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

func TestCollector_SendsAgainWhatWasNotTaken(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x-other = c,bad")
	for _, tt := range []struct {
		name  string
		code  int
		asked int32
		fails bool
	}{
		{"busy", 503, 3, false},
		{"too many", 429, 3, false},
		{"refused", 400, 1, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				var got tracepb.TracesData
				if err := proto.Unmarshal(body, &got); err != nil || len(got.ResourceSpans) != 1 || got.ResourceSpans[0].SchemaUrl != "x" {
					t.Errorf("sent: %v, %v", &got, err)
				}
				if r.URL.Path != "/otlp/v1/traces" || r.Header.Get("Api-Key") != "a b" || r.Header.Get("X-Other") != "c" || r.Header.Get("Content-Type") != "application/x-protobuf" {
					t.Errorf("to %s with %v", r.URL, r.Header)
				}
				if asked.Add(1) < 3 {
					w.WriteHeader(tt.code)
				}
			}))
			defer server.Close()
			c := newCollector(server.URL + "/otlp/")
			c.pause = time.Millisecond
			if err := c.UploadTraces(t.Context(), []*tracepb.ResourceSpans{{SchemaUrl: "x"}}); err != nil != tt.fails || asked.Load() != tt.asked {
				t.Errorf("after %d requests: %v", asked.Load(), err)
			}
		})
	}
}
