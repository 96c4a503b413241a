package telemetry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector sends spans to an OpenTelemetry collector, by OTLP over HTTP. It replaces
// otlptracehttp, which adds 2 MB of otherwise unused gRPC to the program.
type collector struct {
	url    string
	header http.Header
	client http.Client
	pause  time.Duration // before the first retry; later pauses are longer
}

// The limits of OpenTelemetry's own exporter.
const (
	exportTime  = 10 * time.Second // of a request
	exportRetry = time.Minute      // until spans are dropped
)

func newCollector(endpoint string) *collector {
	headers := os.Getenv("OTEL_EXPORTER_OTLP_HEADERS") //nolint:forbidigo // OpenTelemetry's, as what resource.WithFromEnv reads
	return &collector{
		url: strings.TrimRight(endpoint, "/") + "/v1/traces", header: headersOf(headers),
		client: http.Client{Timeout: exportTime}, pause: 5 * time.Second,
	}
}

// headersOf parses name=value,name=value, with values escaped as in URLs.
func headersOf(text string) http.Header {
	header := http.Header{}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, found := strings.Cut(pair, "=")
		if value, err := url.PathUnescape(strings.TrimSpace(value)); found && err == nil {
			header.Set(strings.TrimSpace(name), value)
		}
	}
	header.Set("Content-Type", "application/x-protobuf")
	return header
}

func (c *collector) Start(context.Context) error { return nil }

func (c *collector) Stop(context.Context) error {
	c.client.CloseIdleConnections()
	return nil
}

// UploadTraces sends spans, and retries while the collector says that it is busy.
func (c *collector) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// The wire format equals ExportTraceServiceRequest, whose package imports gRPC.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval = c.pause
	_, err = backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, c.send(ctx, body) },
		backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(exportRetry))
	return err
}

func (c *collector) send(ctx context.Context, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(err)
	}
	r.Header = c.header.Clone()
	resp, err := c.client.Do(r)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20)) // so that the connection can be reused
	_ = resp.Body.Close()
	switch {
	case resp.StatusCode/100 == 2:
		return nil
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode >= 502 && resp.StatusCode <= 504:
		return fmt.Errorf("%s says %s", c.url, resp.Status)
	}
	return backoff.Permanent(fmt.Errorf("%s says %s", c.url, resp.Status))
}
