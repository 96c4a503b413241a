package store

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/pgtest"
)

// What one engine has taken is there for another, and what was taken half for none.
func TestUploads_AreThereForAllEngines(t *testing.T) {
	url, ctx := pgtest.Database(t), t.Context()
	one, other := openURL(t, url), openURL(t, url)
	const most = 3 * maxPiece
	put := func(owner, hash, text string, size int) (bool, error) {
		t.Helper()
		return one.PutUpload(ctx, owner, hash, int64(size), most, time.Now().Add(-time.Hour), strings.NewReader(text))
	}
	open := func(owner, hash string) io.ReadCloser {
		t.Helper()
		r, err := other.OpenUpload(ctx, owner, hash)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	large := strings.Repeat("large ", maxPiece/4)
	if room, err := put("ann", "h", large, len(large)); !room || err != nil {
		t.Fatal(room, err)
	}
	was := open("ann", "h")
	if got, err := io.ReadAll(open("ann", "h")); err != nil || string(got) != large {
		t.Errorf("%d bytes of %d, %v", len(got), len(large), err)
	}
	if has, err := other.HasUpload(ctx, "ann", "h"); !has || err != nil {
		t.Error(has, err)
	}
	for _, of := range [][2]string{{"bob", "h"}, {"ann", "other"}} {
		if has, err := other.HasUpload(ctx, of[0], of[1]); has || err != nil {
			t.Errorf("%s: %v, %v", of, has, err)
		}
		if _, err := other.OpenUpload(ctx, of[0], of[1]); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("%s: %v", of, err)
		}
	}
	if room, err := put("ann", "other", "", 2*maxPiece); room || err != nil {
		t.Error("one that is too much:", room, err)
	}
	if _, err := put("ann", "h", "half", maxPiece); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error("one that ends before its end:", err)
	}
	if got, err := io.ReadAll(open("ann", "h")); err != nil || string(got) != large {
		t.Errorf("after that: %d bytes of %d, %v", len(got), len(large), err)
	}
	if room, err := put("ann", "h", "anew", 4); !room || err != nil {
		t.Error(room, err)
	}
	if got, err := io.ReadAll(open("ann", "h")); err != nil || !bytes.Equal(got, []byte("anew")) {
		t.Errorf("anew: %q, %v", got, err)
	}
	if _, err := io.ReadAll(was); err == nil || !strings.Contains(err.Error(), "uploaded again") {
		t.Error("one that was open then:", err)
	}
	// What nobody has used goes with its bytes.
	if _, err := one.PutUpload(ctx, "bob", "h", 1, most, time.Now().Add(time.Hour), strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	left, err := query(ctx, one.read, scanValue[string], `SELECT owner || ' ' || at || ' ' || octet_length(data) FROM uploads JOIN upload_data ON upload_id = id`)
	if err != nil || strings.Join(left, ", ") != "bob 0 1" {
		t.Errorf("left: %q, %v", left, err)
	}
}
