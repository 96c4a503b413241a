package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// Webhooks configures how messages about ended jobs, VMs and queues are made and delivered.
type Webhooks struct {
	Send         func(context.Context, job.Webhook) job.WebhookResult
	Installation bool                 // messages about every job and every VM go to the installation's URL
	Private      func(j job.Job) bool // whether the job's own URL may have a private address; nil: never
	Page         string               // URL at which jobs are shown; empty: none
	Pauses       []time.Duration      // between attempts; nil: webhookPauses
}

// webhookPauses are the pauses between attempts; there is one more attempt than pauses. A receiver
// that is down for a night still gets its messages.
var webhookPauses = []time.Duration{
	5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour,
}

const (
	webhooksAtOnce = 8
	webhooksRead   = 100
	webhookAge     = 24 * time.Hour
	webhookTime    = 15 * time.Second // longest time of an attempt; Send enforces it
	webhookLook    = 30 * time.Second // another engine may have recorded messages
	webhookFailed  = 5 * time.Second  // after the store could not record an attempt
)

// ending returns the messages about a job that has just ended, to be recorded with its status.
func (e *Executor) ending(j job.Job) []job.Webhook {
	o := e.o.Webhooks
	if o == nil {
		return nil
	}
	var urls []string
	if o.Installation {
		urls = append(urls, "")
	}
	if j.Manifest.Notify != nil {
		urls = append(urls, j.Manifest.Notify.URL)
	}
	if len(urls) == 0 {
		return nil
	}
	body, err := job.WebhookBody(j, o.Page)
	if err != nil {
		e.o.Log.Error("a webhook cannot be written", "job_id", j.ID, "err", err)
		return nil
	}
	var all []job.Webhook
	for _, to := range urls {
		all = append(all, job.Webhook{
			ID: "msg_" + uuid.NewString(), JobID: j.ID, URL: to, Body: body, CreatedAt: now(), NextAt: now(),
			Private: to != "" && o.Private != nil && o.Private(j),
		})
	}
	return all
}

// OfVM returns the messages about a change of a VM, to be recorded with it.
func (o *Webhooks) OfVM(was, is vm.VM) []job.Webhook {
	if o == nil || !o.Installation {
		return nil
	}
	body, err := job.VMWebhookBody(was, is, now(), o.Page)
	if err != nil || body == nil { // every VM can be encoded
		return nil
	}
	return []job.Webhook{{ID: "msg_" + uuid.NewString(), VM: is.Job, Body: body, CreatedAt: now(), NextAt: now()}}
}

// tellDispatchers records messages about dispatchers whose status differs from the one last told.
func (e *Executor) tellDispatchers(ctx context.Context) {
	o := e.o.Webhooks
	if !o.Installation {
		return
	}
	err := e.o.Dispatchers.TellDispatchers(ctx, func(was string, d job.Dispatcher) []job.Webhook {
		body, err := job.DispatcherWebhookBody(was, d, now(), o.Page)
		if err != nil || body == nil { // every dispatcher can be encoded
			return nil
		}
		return []job.Webhook{{ID: "msg_" + uuid.NewString(), Body: body, CreatedAt: now(), NextAt: now()}}
	})
	if err != nil && ctx.Err() == nil {
		e.o.Log.Error("changes of dispatchers could not be reported yet", "err", err)
	}
}

// notifyAll delivers messages when they are due, until ctx ends. Only one of several engines does
// that; the next one repeats what it does not finish.
func (e *Executor) notifyAll(ctx context.Context) {
	if e.o.Webhooks == nil {
		return
	}
	for {
		wait := webhookLook
		if e.Leads(ctx) {
			e.tellDispatchers(ctx)
			wait = e.notifyDue(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-e.notices:
		case <-time.After(wait):
		}
	}
}

// notifyDue delivers the messages that are due, and returns when to look again.
func (e *Executor) notifyDue(ctx context.Context) time.Duration {
	e.undelivered.Store(false) // before the look: messages that arrive meanwhile set it again
	all, err := e.o.Outbox.Webhooks(ctx, webhooksRead)
	if err != nil {
		if ctx.Err() == nil {
			e.o.Log.Error("read webhooks failed", "err", err)
		}
		return webhookLook
	}
	if len(all) > 0 {
		e.undelivered.Store(true)
	}
	wait, busy := webhookLook, false
	var failed atomic.Bool
	var sending sync.WaitGroup
	seats := make(chan struct{}, webhooksAtOnce)
	for _, w := range all {
		if until := time.Until(w.NextAt); until > 0 {
			wait = min(wait, until)
			continue
		}
		busy = true
		seats <- struct{}{}
		sending.Go(func() {
			defer func() { <-seats }()
			if err := e.notify(ctx, w); err != nil && ctx.Err() == nil {
				failed.Store(true)
				e.o.Log.Error("record the delivery of a webhook failed", "job_id", cmp.Or(w.JobID, w.VM), "err", err)
			}
		})
	}
	sending.Wait()
	if failed.Load() {
		return webhookFailed
	}
	if busy {
		return 100 * time.Millisecond // some may be due again, and there may be more than were read
	}
	return wait
}

// notify makes one attempt to deliver a message. It first records when the next attempt is due, so
// that another engine continues if this one dies in between.
func (e *Executor) notify(ctx context.Context, w job.Webhook) error {
	pauses := e.o.Webhooks.Pauses
	if pauses == nil {
		pauses = webhookPauses
	}
	pause := pauses[min(w.Attempts, len(pauses)-1)]
	taken, err := e.o.Outbox.TakeWebhook(ctx, w, now().Add(webhookTime+pause))
	if err != nil || !taken {
		return err
	}
	began := time.Now()
	r := e.o.Webhooks.Send(ctx, w)
	if ctx.Err() != nil {
		return nil // the engine stops; receivers recognise a repeated message by its ID
	}
	next := now().Add(pause)
	attempt := w.Attempts + 1
	log := e.o.Log.With("job_id", cmp.Or(w.JobID, w.VM), "host", r.Host, "attempt", attempt, "status", r.Status, "duration_ms", time.Since(began).Milliseconds())
	over := r.Final || attempt > len(pauses) || time.Since(w.CreatedAt) > webhookAge
	d := job.Delivery{ID: w.ID, To: cmp.Or(r.Host, w.Host()), State: job.DeliveryPending, Attempts: attempt, At: now()}
	if r.Err != nil {
		d.Error = job.Bounded(r.Err.Error())
	}
	var events []job.Event
	switch {
	case r.Err == nil:
		log.Info("webhook delivered")
		d.State = job.DeliveryDone
		events = []job.Event{{Kind: job.EventProgress, Text: fmt.Sprintf("webhook delivered to %s (%d), attempt %d", r.Host, r.Status, attempt)}}
	case over:
		log.Warn("webhook given up", "err", r.Err)
		d.State = job.DeliveryGivenUp
		events = []job.Event{{Kind: job.EventWarning, Text: fmt.Sprintf("webhook to %s given up after attempt %d: %v", r.Host, attempt, r.Err)}}
	case attempt == 1:
		d.NextAt = next
		log.Warn("webhook failed, will be tried again", "err", r.Err)
		events = []job.Event{{Kind: job.EventWarning, Text: fmt.Sprintf("webhook to %s failed and is tried again: %v", r.Host, r.Err)}}
	default:
		d.NextAt = next
		log.Warn("webhook failed again", "err", r.Err)
	}
	if w.VM != "" {
		if d.State != job.DeliveryPending {
			err = e.o.Outbox.DropWebhook(ctx, w.ID)
		}
		e.o.Changes.Add(d)
		return errors.Join(err, e.o.Fleet.Tell(ctx, w.VM, events))
	}
	record := job.Record{Events: events}
	if d.State == job.DeliveryPending {
		record.Postponed = []job.Webhook{{ID: w.ID, NextAt: next}}
	} else {
		record.Dropped = []string{w.ID}
	}
	_, err = e.updateWith(ctx, w.JobID, func(j *job.Job) (job.Record, error) {
		j.SetDelivery(d)
		return record, nil
	})
	if errors.Is(err, job.ErrNotFound) && d.State != job.DeliveryPending { // the job was deleted
		err = e.o.Outbox.DropWebhook(ctx, w.ID)
	}
	if err != nil && !errors.Is(err, job.ErrNotFound) {
		return err
	}
	e.o.Changes.Add(d)
	return nil
}
