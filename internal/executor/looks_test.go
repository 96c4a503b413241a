package executor_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
)

// slowHost is a host whose check goes on until it is let on, or is not wanted any more.
type slowHost struct {
	job.Provider
	began, on chan struct{}
	ended     chan error // of each check
}

func (h *slowHost) Check(ctx context.Context) (job.HostReport, error) {
	h.began <- struct{}{}
	var err error
	select {
	case <-h.on:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	h.ended <- err
	return job.HostReport{OK: err == nil}, err
}

// A check of the host, for which others may wait, does not end with who has begun it.
func TestCheckHost_OutlastsItsCaller(t *testing.T) {
	r := newRig(t, 1)
	h := &slowHost{Provider: r.opts.Provider, began: make(chan struct{}, 1), on: make(chan struct{}), ended: make(chan error, 1)}
	r.stop()
	r.opts.Provider = h
	r.restart()
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := r.CheckHost(ctx)
		left <- err
	}()
	<-h.began
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(h.on)
	if err := <-h.ended; err != nil {
		t.Error(err)
	}
}

// What one watcher has seen of a job is good for another for a moment only: what a job waits
// for can change though the job does not.
func TestWatch_WhatAnotherHasSeenGetsOld(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r, _ := newWatchedRig(t)
		do, release := hold(t, providertest.Task{})
		r.behave(providertest.Behaviour{Task: do}, true)
		runs := r.submit()
		r.until(runs, func(j job.Job) bool { return j.Status == job.Running })
		before, id := r.submit(), r.submit()
		look := func() string {
			ctx, end := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer end()
			_, j, err := r.Watch(ctx, id, 1000)
			if err != nil {
				t.Error(err)
			}
			return j.Progress
		}
		if says := look(); !strings.Contains(says, "1 jobs ahead") {
			t.Error(says)
		}
		if err := r.Cancel(t.Context(), before); err != nil {
			t.Fatal(err)
		}
		r.wait(before)
		time.Sleep(2 * time.Second)
		if says := look(); !strings.Contains(says, "0 jobs ahead") {
			t.Error(says)
		}
		release()
		r.wait(runs)
		r.wait(id)
	})
}
