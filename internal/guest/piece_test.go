package guest

import (
	"bufio"
	"strings"
	"testing"

	"linus/internal/job"
)

// pieces reads a channel to its end.
func pieces(text string) (list []job.Piece, err error) {
	l, in := &launch{nonce: "n"}, bufio.NewReader(strings.NewReader(text))
	for {
		p, err := l.piece(in)
		if err != nil {
			return list, err
		}
		if list = append(list, p); p.End != nil {
			return list, nil
		}
	}
}

const sum = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

const ended = "LINUS_BEGIN:n\nLINUS_JOB_STATE:exited\nLINUS_EXIT_CODE:3\nLINUS_EXIT_REASON:exit\nLINUS_STDOUT_BYTES:3\nLINUS_STDERR_BYTES:0\nLINUS_DURATION:0.10\n"

func TestPiece(t *testing.T) {
	list, err := pieces("LINUS_OUTPUT:n:stdout:0:3\na\nbLINUS_OUTPUT:n:stderr:0:1\n\x00LINUS_OUTPUT:n:stdout:3:1\nc" +
		ended + "LINUS_STDOUT_SHA256:" + sum + "\nLINUS_STDERR_SHA256:" + sum + "\nLINUS_RESULT:SUCCESS\nLINUS_END:n\n")
	if err != nil || len(list) != 4 {
		t.Fatalf("%+v, %v", list, err)
	}
	if string(list[0].Data) != "a\nb" || list[1].Stream != job.Stderr || string(list[2].Data) != "c" || list[2].Offset != 3 {
		t.Errorf("%+v", list[:3])
	}
	if end := list[3].End; end.ExitCode != 3 || end.Sums != [2]string{sum, sum} {
		t.Errorf("%+v", end)
	}
}

// A VM says what it likes: what is no piece ends the channel, and none is longer than
// it may be.
func TestPiece_RefusesWhatIsNone(t *testing.T) {
	for name, text := range map[string]string{
		"noise":                 "hello\n",
		"another nonce":         "LINUS_OUTPUT:m:stdout:0:1\nx",
		"another stream":        "LINUS_OUTPUT:n:stdin:0:1\nx",
		"a gap":                 "LINUS_OUTPUT:n:stdout:1:1\nx",
		"the same again":        "LINUS_OUTPUT:n:stdout:0:1\nxLINUS_OUTPUT:n:stdout:0:1\nx",
		"no length":             "LINUS_OUTPUT:n:stdout:0:\nx",
		"nothing":               "LINUS_OUTPUT:n:stdout:0:0\n",
		"a negative length":     "LINUS_OUTPUT:n:stdout:0:-1\nx",
		"too long":              "LINUS_OUTPUT:n:stdout:0:262145\n" + strings.Repeat("x", 262145),
		"one field more":        "LINUS_OUTPUT:n:stdout:0:1:1\nx",
		"cut off":               "LINUS_OUTPUT:n:stdout:0:3\nab",
		"a line without end":    strings.Repeat("x", 1<<20),
		"an end that is none":   strings.Replace(ended, "exited", "running", 1) + "LINUS_RESULT:SUCCESS\nLINUS_END:n\n",
		"an end that failed":    ended + "LINUS_RESULT:FAILURE\nLINUS_END:n\n",
		"an end that is cut":    ended + "LINUS_RESULT:SUCCESS\n",
		"an endless end":        ended + strings.Repeat("LINUS_X:y\n", 1<<20),
		"an impossible code":    strings.Replace(ended, "CODE:3", "CODE:256", 1) + "LINUS_RESULT:SUCCESS\nLINUS_END:n\n",
		"half of the sums":      ended + "LINUS_STDOUT_SHA256:" + sum + "\nLINUS_RESULT:SUCCESS\nLINUS_END:n\n",
		"a sum that is no sum":  ended + "LINUS_STDOUT_SHA256:x\nLINUS_STDERR_SHA256:x\nLINUS_RESULT:SUCCESS\nLINUS_END:n\n",
		"a number out of range": "LINUS_OUTPUT:n:stdout:99999999999999999999:1\nx",
	} {
		t.Run(name, func(t *testing.T) {
			list, err := pieces(text)
			if err == nil || len(list) > 1 {
				t.Errorf("%d pieces, %v", len(list), err)
			}
		})
	}
}

// Whatever a channel brings, it is in pieces that follow on each other.
func FuzzPiece(f *testing.F) {
	f.Add("LINUS_OUTPUT:n:stdout:0:3\na\nbLINUS_OUTPUT:n:stderr:0:1\n\x00" + ended + "LINUS_RESULT:SUCCESS\nLINUS_END:n\n")
	f.Add("LINUS_OUTPUT:n:stdout:0:-3\na")
	f.Add("LINUS_BEGIN:n\nLINUS_END:n\n")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := pieces(text)
		at := map[string]int64{}
		for _, p := range list {
			if p.End != nil {
				if err != nil || !p.End.Exited {
					t.Errorf("end %+v, %v", p.End, err)
				}
				continue
			}
			if p.Offset != at[p.Stream] || len(p.Data) == 0 || len(p.Data) > maxPiece || (p.Stream != job.Stdout && p.Stream != job.Stderr) {
				t.Errorf("piece of %d bytes of %q at %d", len(p.Data), p.Stream, p.Offset)
			}
			at[p.Stream] += int64(len(p.Data))
		}
		if at[job.Stdout]+at[job.Stderr] > int64(len(text)) {
			t.Error("more came than was there")
		}
	})
}
