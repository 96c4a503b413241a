package e2e

import (
	"strconv"
	"testing"

	"linus/internal/lab"
)

// Output of ten megabytes comes back byte for byte.
func TestOutput_OfTenMegabytes(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	id := c.submit(script("seq 2000000 | head -c 10000000"))
	if job := c.wait(id); job["status"] != "success" {
		t.Fatalf("job %v", job)
	}
	var want []byte
	for n := 1; len(want) < 10000000; n++ {
		want = append(strconv.AppendInt(want, int64(n), 10), '\n')
	}
	if got := h.cli(t, "job", "result", id); got != string(want[:10000000]) {
		t.Errorf("%d bytes, which begin with %q", len(got), got[:min(len(got), 50)])
	}
}
