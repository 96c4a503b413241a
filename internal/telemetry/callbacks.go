package telemetry

import (
	"context"
	"errors"

	"linus/internal/job"
)

// reporter handles callbacks.
type reporter interface {
	Authorize(ctx context.Context, id, token string) error
	Report(ctx context.Context, id, token string, r job.Report) error
	AppendOutput(ctx context.Context, id, token, stream string, offset int64, data []byte) (int64, error)
}

// Reporter counts callbacks on their way to another reporter.
type Reporter struct {
	to      reporter
	metrics *Metrics
}

// Reporter wraps to in a layer that counts callbacks.
func (m *Metrics) Reporter(to reporter) *Reporter { return &Reporter{to: to, metrics: m} }

// Authorize passes the check on. A refused request has no kind, since nothing of it was read.
func (c *Reporter) Authorize(ctx context.Context, id, token string) error {
	err := c.to.Authorize(ctx, id, token)
	if err != nil {
		c.count("none", err)
	}
	return err
}

// Report passes a report on.
func (c *Reporter) Report(ctx context.Context, id, token string, r job.Report) error {
	err := c.to.Report(ctx, id, token, r)
	c.count(string(r.Kind), err)
	return err
}

// AppendOutput passes output on.
func (c *Reporter) AppendOutput(ctx context.Context, id, token, stream string, offset int64, data []byte) (int64, error) {
	next, err := c.to.AppendOutput(ctx, id, token, stream, offset, data)
	c.count("output", err)
	return next, err
}

func (c *Reporter) count(kind string, err error) {
	result := "ok"
	switch {
	case errors.Is(err, job.ErrNotFound): // includes a wrong token
		result = "refused"
	case err != nil:
		result = "failed"
	}
	c.metrics.callbacks.WithLabelValues(kind, result).Inc()
}
