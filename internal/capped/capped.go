// Package capped keeps the first bytes of what others write, so that its size is bounded.
package capped

// Writer keeps the first Most bytes that are written to it, and accepts the rest without keeping
// it. It is no bytes.Buffer: io.Copy, and so os/exec, would have that read by itself, past the
// bound.
type Writer struct {
	Most int
	Over func() // called by each write that goes beyond Most; may be nil

	kept []byte
	cut  bool
}

func (w *Writer) Write(data []byte) (int, error) {
	left := w.Most - len(w.kept)
	if len(data) > left {
		w.cut = true
		if w.Over != nil {
			w.Over()
		}
	}
	w.kept = append(w.kept, data[:min(len(data), left)]...)
	return len(data), nil
}

// Bytes returns the bytes that are kept.
func (w *Writer) Bytes() []byte { return w.kept }

// Cut reports whether there were more bytes.
func (w *Writer) Cut() bool { return w.cut }
