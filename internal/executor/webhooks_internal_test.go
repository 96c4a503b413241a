package executor

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"linus/internal/job"
)

// fullOutbox has a message that is due, and no room to record that it is sent.
type fullOutbox struct{ WebhookStore }

func (fullOutbox) Webhooks(context.Context, int) ([]job.Webhook, error) {
	return []job.Webhook{{ID: "1"}}, nil
}

func (fullOutbox) TakeWebhook(context.Context, job.Webhook, time.Time) (bool, error) {
	return false, errors.New("database or disk is full")
}

func TestWebhooks_WaitForAStoreThatCannotRecordThem(t *testing.T) {
	e := &Executor{o: Options{Stores: Stores{Outbox: fullOutbox{}}, Webhooks: &Webhooks{}, Log: slog.New(slog.DiscardHandler)}}
	if wait := e.notifyDue(t.Context()); wait < time.Second {
		t.Errorf("it is tried again after %v", wait)
	}
}
