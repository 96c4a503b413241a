package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/job"
)

// slowTask takes a part of input each time it is let to.
type slowTask struct {
	parts  chan []byte // what it is offered
	next   chan error  // what it says to it
	closed int
}

func (s *slowTask) Input(_ context.Context, _ string, data []byte, closed bool) error {
	if closed {
		s.closed++
		return nil
	}
	s.parts <- data
	return <-s.next
}

// counted counts what is read of a stream.
type counted struct {
	io.Reader
	read atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func TestSendInput_WhatComesMeanwhileGoesTogether(t *testing.T) {
	blob := make([]byte, 3*job.MaxInput)
	_, _ = rand.Read(blob)
	to := &slowTask{parts: make(chan []byte), next: make(chan error)}
	from := &counted{Reader: bytes.NewReader(blob)}
	done := make(chan error)
	var total int64
	go func() {
		var err error
		total, err = sendInput(t.Context(), to, "j", from, true, func() {})
		done <- err
	}()
	first := <-to.parts // sent at once, however little it is
	// While it is under way, the next fills up.
	for deadline := time.Now().Add(time.Minute); from.read.Load() < int64(len(first)+job.MaxInput*3/4); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are read ahead of the first %d", from.read.Load(), len(first))
		}
	}
	to.next <- nil
	got, calls := bytes.Clone(first), 1
	for {
		select {
		case part := <-to.parts:
			if len(part) > job.MaxInput {
				t.Fatalf("%d bytes at once", len(part))
			}
			if calls == 1 && len(part) < job.MaxInput/2 {
				t.Errorf("%d bytes after the first, want what has come meanwhile", len(part))
			}
			got = append(got, part...)
			calls++
			to.next <- nil
			continue
		case err := <-done:
			if err != nil || total != int64(len(blob)) || !bytes.Equal(got, blob) || to.closed != 1 {
				t.Errorf("%v, %d of %d bytes, the same: %v, closed %d times", err, total, len(blob), bytes.Equal(got, blob), to.closed)
			}
		}
		break
	}
}

func TestSendInput_EndsWithTheTask(t *testing.T) {
	to := &slowTask{parts: make(chan []byte, 1), next: make(chan error, 1)}
	gone := errors.New("gone")
	to.next <- gone
	r, w := io.Pipe()
	go func() { _, _ = w.Write([]byte("line\n")) }()
	total, err := sendInput(t.Context(), to, "j", r, true, func() {})
	if !errors.Is(err, gone) || total != 0 || to.closed != 0 || string(<-to.parts) != "line\n" {
		t.Errorf("%v, %d bytes, closed %d times", err, total, to.closed)
	}
}
