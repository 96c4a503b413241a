package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"linus/internal/secret"
)

func list(secrets ...string) [][]byte {
	var all [][]byte
	for _, s := range secrets {
		all = append(all, []byte(s))
	}
	return all
}

func TestMask_StarsEveryByteAndHoldsBackBeginnings(t *testing.T) {
	tests := []struct {
		name    string
		secrets [][]byte
		data    string
		final   bool
		want    string
	}{
		{"nothing secret", nil, "hello", false, "hello"},
		{"nothing said", list("hunter2"), "", true, ""},
		{"one", list("hunter2"), "password hunter2.\n", false, "password *******.\n"},
		{"twice, adjacent", list("hunter2"), "hunter2hunter2!", false, "**************!"},
		{"overlapping itself", list("abcab"), "xabcabcabx", false, "x********x"},
		{"one inside another", list("hunter2", "unter"), "hunter2 unter", true, "******* *****"},
		{"two overlapping", list("abcde", "defgh"), "_abcdefgh_", false, "_********_"},
		{"beginning held back", list("hunter2"), "password hunt", false, "password "},
		{"the longest beginning of several", list("hunter2", "terrible"), "a hunter", false, "a "},
		{"beginning told at the end", list("hunter2"), "password hunt", true, "password hunt"},
		{"whole secret at the end is told", list("hunter2"), "is hunter2", false, "is *******"},
		{"occurrence that overlaps what is held back stays whole", list("abab"), "xabab", false, "x"},
		{"the one that reaches farthest stays whole", list("aabb", "aaabbc", "bcd"), "xaaabbc", false, "x"},
		{"binary", list("\x00\xff\x00\xfe"), "a\x00\xff\x00\xfeb", false, "a****b"},
		{"an empty secret is none", list(""), "abc", false, "abc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data := []byte(tt.data)
			masked, n := secret.Mask(tt.secrets, data, tt.final)
			if string(masked) != tt.want || n != len(tt.want) {
				t.Errorf("Mask() = %q, %d; want %q", masked, n, tt.want)
			}
			if string(data) != tt.data {
				t.Errorf("the data became %q", data)
			}
		})
	}
}

// inChunks masks data as a caller does that gets it in pieces, each as long as
// next says.
func inChunks(t *testing.T, secrets [][]byte, data []byte, next func() int) []byte {
	t.Helper()
	longest := 0
	for _, s := range secrets {
		longest = max(longest, len(s))
	}
	var out, held []byte
	for {
		n := min(next(), len(data))
		held, data = append(held, data[:n]...), data[n:]
		masked, decided := secret.Mask(secrets, held, len(data) == 0)
		if len(masked) != decided {
			t.Fatalf("Mask() answers %d bytes and says %d", len(masked), decided)
		}
		out, held = append(out, masked...), held[decided:]
		if len(held) > 0 && len(held) >= 2*longest {
			t.Fatalf("%d bytes held back for a secret of %d", len(held), longest)
		}
		if len(data) == 0 {
			return out
		}
	}
}

// slowMask says what masking means: a byte is starred when it lies in an
// occurrence of a secret.
func slowMask(secrets [][]byte, data []byte) []byte {
	out := bytes.Clone(data)
	for _, s := range secrets {
		for i := range data {
			if len(s) > 0 && bytes.HasPrefix(data[i:], s) {
				copy(out[i:], strings.Repeat("*", len(s)))
			}
		}
	}
	return out
}

func TestMask_NoChunkingLetsAByteThrough(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 2))
	text := func(n, letters int) []byte { // few letters: overlaps and repetitions abound
		b := make([]byte, n)
		for i := range b {
			b[i] = byte('a' + random.IntN(letters))
		}
		return b
	}
	for range 20000 {
		letters := 1 + random.IntN(3)
		var secrets [][]byte
		for range 1 + random.IntN(4) {
			secrets = append(secrets, text(1+random.IntN(8), letters))
		}
		data := text(random.IntN(60), letters)
		most := 1 + random.IntN(12)
		got := inChunks(t, secrets, data, func() int { return random.IntN(most + 1) })
		if want := slowMask(secrets, data); !bytes.Equal(got, want) {
			t.Fatalf("secrets %q, data %q, chunks up to %d:\n got %q\nwant %q", secrets, data, most, got, want)
		}
	}
}

func FuzzMask(f *testing.F) {
	f.Add([]byte("abab"), []byte("bcd"), []byte("xababcdab"), uint64(1))
	f.Add([]byte("aaaa"), []byte("aab"), []byte("aaaaaaaaaab"), uint64(7))
	f.Fuzz(func(t *testing.T, a, b, data []byte, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		secrets := [][]byte{a, b}
		got := inChunks(t, secrets, data, func() int { return random.IntN(9) })
		if want := slowMask(secrets, data); !bytes.Equal(got, want) {
			t.Errorf("secrets %q, data %q:\n got %q\nwant %q", secrets, data, got, want)
		}
	})
}

func TestForms_FindTheValueInOtherClothes(t *testing.T) {
	const value = `p&ss "wörd"/+????` + "\n"
	const pem = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nabc\n-----END KEY-----\n"
	inJSON, err := json.Marshal(map[string]string{"key": strings.ReplaceAll(value, "&", "and")})
	if err != nil {
		t.Fatal(err)
	}
	values := []secret.Value{secret.NewValue("A", value), secret.NewValue("B", pem), secret.NewValue("C", strings.ReplaceAll(value, "&", "and"))}
	tests := []struct{ name, output, hidden string }{
		{"as it is", "key: " + value, "wörd"},
		{"its line alone", "  " + strings.TrimSpace(value) + "\r\n", "wörd"},
		{"a line of several", "  | MIIEvQIBADANBgkq\r\n", "MIIE"},
		{"in JSON", string(inJSON), "wörd"},
		{"in a query", "https://host/?key=" + url.QueryEscape(value), "rd%22"},
		{"in a path", "https://host/" + url.PathEscape(value), "rd%22"},
		{"in base64", base64.StdEncoding.EncodeToString([]byte(value)), base64.StdEncoding.EncodeToString([]byte(value))[2:12]},
		{"in base64 behind a user name", base64.StdEncoding.EncodeToString([]byte("user:" + value)), base64.StdEncoding.EncodeToString([]byte("user:" + value))[8:20]},
		{"in base64 for URLs", base64.URLEncoding.EncodeToString([]byte("me" + value)), base64.URLEncoding.EncodeToString([]byte("me" + value))[16:27]},
	}
	forms := secret.Forms(values)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(tt.output, tt.hidden) {
				t.Fatalf("the test is wrong: %q not in %q", tt.hidden, tt.output)
			}
			masked, _ := secret.Mask(forms, []byte(tt.output), true)
			if strings.Contains(string(masked), tt.hidden) || len(masked) != len(tt.output) {
				t.Errorf("%q became %q", tt.output, masked)
			}
		})
	}
	for _, f := range forms {
		if len(f) < secret.MinValue {
			t.Errorf("%q is looked for: too short", f)
		}
	}
}

func TestForms_LeaveOtherTextAlone(t *testing.T) {
	const output = "abc }\n200 OK\n"
	masked, _ := secret.Mask(secret.Forms([]secret.Value{secret.NewValue("J", "{\n  \"key\": \"abcdefgh\"\n}\n")}), []byte(output), true)
	if string(masked) != output {
		t.Errorf("%q became %q", output, masked)
	}
}

func BenchmarkMask(b *testing.B) {
	data := bytes.Repeat([]byte("a line of a build's output, 48 bytes long, more\n"), 1<<20/48)
	forms := secret.Forms([]secret.Value{secret.NewValue("A", "sk-ant-api03-0123456789abcdef"), secret.NewValue("B", strings.Repeat("line of a key\n", 20))})
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		secret.Mask(forms, data, false)
	}
}
