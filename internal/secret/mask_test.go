package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"

	"linus/internal/secret"
)

// masker is one of secrets.
func masker(secrets ...string) *secret.Masker {
	var values []secret.Value
	for _, s := range secrets {
		values = append(values, secret.NewValue("S", s))
	}
	return secret.NewMasker(values)
}

func TestMask_StarsEveryByteAndHoldsBackBeginnings(t *testing.T) {
	tests := []struct {
		name    string
		secrets []string
		data    string
		final   bool
		want    string
	}{
		{"nothing secret", nil, "hello", false, "hello"},
		{"nothing said", []string{"hunter2"}, "", true, ""},
		{"one", []string{"hunter2"}, "password hunter2.\n", false, "password *******.\n"},
		{"twice, adjacent", []string{"hunter2"}, "hunter2hunter2!", false, "**************!"},
		{"overlapping itself", []string{"abcab"}, "xabcabcabx", false, "x********x"},
		{"one inside another", []string{"hunter2", "unter"}, "hunter2 unter", true, "******* *****"},
		{"two overlapping", []string{"abcde", "defgh"}, "_abcdefgh_", false, "_********_"},
		{"beginning held back", []string{"hunter2"}, "password hunt", false, "password "},
		{"one letter held back", []string{"hunter2"}, "password h", false, "password "},
		{"beginning of an escape held back", []string{"/hunter2"}, `password \u002`, false, "password "},
		{"what only looks like a beginning is told", []string{"/hunter2"}, `password \u01`, false, `password \u01`},
		{"the longest beginning of several", []string{"hunter2", "terrible"}, "a hunter", false, "a "},
		{"beginning told at the end", []string{"hunter2"}, "password hunt", true, "password hunt"},
		{"whole secret at the end is told", []string{"hunter2"}, "is hunter2", false, "is *******"},
		{"occurrence that overlaps what is held back stays whole", []string{"ababab"}, "xababab", false, "x"},
		{"the one that reaches farthest stays whole", []string{"aaabb", "aaaabbc", "bcde"}, "xaaaabbc", false, "x"},
		{"binary", []string{"\x00\xff\x00\xfe"}, "a\x00\xff\x00\xfeb", false, "a****b"},
		{"an empty secret is none", []string{""}, "abc", false, "abc"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data := []byte(tt.data)
			masked, n := masker(tt.secrets...).Mask(data, tt.final)
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
func inChunks(t *testing.T, m *secret.Masker, data []byte, next func() int) []byte {
	t.Helper()
	var out, held []byte
	for {
		n := min(next(), len(data))
		held, data = append(held, data[:n]...), data[n:]
		masked, decided := m.Mask(held, len(data) == 0)
		if len(masked) != decided {
			t.Fatalf("Mask() answers %d bytes and says %d", len(masked), decided)
		}
		out, held = append(out, masked...), held[decided:]
		if len(held) > 0 && len(held) >= 2*m.Longest() {
			t.Fatalf("%d bytes held back for a secret of %d", len(held), m.Longest())
		}
		if len(data) == 0 {
			return out
		}
	}
}

// grammar is an expression for one secret, however its characters are escaped:
// what masking looks for, said in another way. A text's own % and \ stand as
// they are everywhere, or nowhere.
func grammar(text string, plainPercent, plainBackslash bool) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		var bytewise strings.Builder
		for _, c := range []byte(text[:size]) {
			ways := fmt.Sprintf("%%(?i:%02x)", c)
			switch plain := regexp.QuoteMeta(string(rune(c))); { // bytes as characters of Latin 1
			case c == '%' && plainPercent:
				ways = plain
			case c != '%' && (c != '\\' || plainBackslash):
				ways += "|" + plain
			}
			fmt.Fprintf(&bytewise, "(?:%s)", ways)
		}
		units := utf16.Encode([]rune{r})
		escape := ""
		for _, u := range units {
			escape += fmt.Sprintf(`\\u(?i:%04x)`, u)
		}
		ways := bytewise.String()
		if r != '\\' || !plainBackslash {
			ways += "|" + escape
		}
		if i := strings.IndexByte("\"\\/\b\f\n\r\t", text[0]); i >= 0 && (r != '\\' || !plainBackslash) {
			ways += `|\\` + regexp.QuoteMeta(`"\/bfnrt`[i:i+1])
		}
		if r == ' ' {
			ways += `|\+`
		}
		fmt.Fprintf(&b, "(?:%s)", ways)
		text = text[size:]
	}
	return b.String()
}

func latin1(data []byte) (string, []int) {
	var b strings.Builder
	var at []int // where in the text each byte is
	for _, c := range data {
		at = append(at, b.Len())
		b.WriteRune(rune(c))
	}
	return b.String(), append(at, b.Len())
}

// slowMask says what masking means: a byte is starred when it lies in an
// occurrence of a secret.
func slowMask(t *testing.T, secrets []string, data []byte) []byte {
	t.Helper()
	out := bytes.Clone(data)
	text, at := latin1(data)
	for _, s := range secrets {
		for reading := range 4 {
			re := regexp.MustCompile("^(?:" + grammar(s, reading&1 == 0, reading&2 == 0) + ")")
			re.Longest()
			for i := range data {
				if found := re.FindStringIndex(text[at[i]:]); found != nil {
					for j := i; at[j] < at[i]+found[1]; j++ {
						out[j] = '*'
					}
				}
			}
		}
	}
	return out
}

func TestMask_NoChunkingLetsAByteThrough(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 2))
	// Few letters: overlaps and repetitions abound.
	text := func(letters []string, least, more int) string {
		var b strings.Builder
		for range least + random.IntN(more+1) {
			b.WriteString(letters[random.IntN(len(letters))])
		}
		return b.String()
	}
	for _, alphabet := range []struct {
		name         string
		letters, too []string // of secrets; and, in the data, these
		rounds       int
	}{
		{"one letter", []string{"a"}, nil, 60},
		{"letters", []string{"a", "b", "c"}, nil, 250},
		{"escapes", []string{"%", `\`, "/", "n", "\n", " "}, []string{"%2", "5", "f", "F", `\u00`, "5c", "5C", "2f", "2F", "+", "%25", "%5C", "%0a"}, 200},
		{"characters", []string{"é", "𝄞", "u", "0"}, []string{`\u00`, "e9", "E9", "%c3", "%C3", "%a9", "\xc3", "\xa9", `\ud834`, `\uDD1E`, "%F0%9d", "%84%9E"}, 200},
	} {
		t.Run(alphabet.name, func(t *testing.T) {
			starred := 0
			for range alphabet.rounds {
				var secrets []string
				for range 1 + random.IntN(3) {
					if s := text(alphabet.letters, 4, 4); strings.TrimSpace(s) == s && !strings.Contains(s, "\n") {
						secrets = append(secrets, s)
					}
				}
				data := []byte(text(append(slices.Clone(alphabet.letters), alphabet.too...), 0, 40))
				if len(secrets) > 0 && random.IntN(2) == 0 { // one in other clothes
					data = slices.Concat(data, clothed(secrets[0], random), data)
				}
				most := 1 + random.IntN(12)
				got := inChunks(t, masker(secrets...), data, func() int { return random.IntN(most + 1) })
				if want := slowMask(t, secrets, data); !bytes.Equal(got, want) {
					t.Fatalf("secrets %q, data %q, chunks up to %d:\n got %q\nwant %q", secrets, data, most, got, want)
				}
				starred += bytes.Count(got, []byte("*"))
			}
			if starred < alphabet.rounds {
				t.Errorf("%d bytes were starred in %d rounds: that shows little", starred, alphabet.rounds)
			}
		})
	}
}

// clothed returns text with each character escaped at random, and the escape
// characters always.
func clothed(text string, random *rand.Rand) []byte {
	var b bytes.Buffer
	for _, r := range text {
		switch way := random.IntN(4); {
		case way == 0 && r != '%' && r != '\\':
			b.WriteRune(r)
		case way == 1:
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, u)
			}
		case way == 2:
			for _, u := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04X`, u)
			}
		default:
			for _, c := range []byte(string(r)) {
				fmt.Fprintf(&b, "%%%02x", c)
			}
		}
	}
	return b.Bytes()
}

func FuzzMask(f *testing.F) {
	f.Add("ababab", "bcdbcd", []byte("xabababcdabcd"), uint64(1))
	f.Add("aaaa", "aabb", []byte("aaaaaaaaaab"), uint64(7))
	f.Add(`a%\/`, "a b\tc", []byte(`a%25%5c%2Fa+b\u0009c`), uint64(7))
	f.Fuzz(func(t *testing.T, a, b string, data []byte, seed uint64) {
		var secrets []string
		for _, s := range []string{a, b} {
			if len(s) >= secret.MinValue && len(s) < 50 && utf8.ValidString(s) && !strings.Contains(s, "\ufffd") && !strings.Contains(s, "\n") && strings.TrimSpace(s) == s {
				secrets = append(secrets, s)
			}
		}
		if len(data) > 200 {
			return
		}
		random := rand.New(rand.NewPCG(seed, 0))
		got := inChunks(t, masker(secrets...), data, func() int { return random.IntN(9) })
		if want := slowMask(t, secrets, data); !bytes.Equal(got, want) {
			// Base64 of a secret is starred, too; this reading knows nothing of it.
			for i := range got {
				if got[i] != want[i] && got[i] != '*' {
					t.Fatalf("secrets %q, data %q:\n got %q\nwant %q", secrets, data, got, want)
				}
			}
		}
	})
}

func TestMasker_FindTheValueInOtherClothes(t *testing.T) {
	const value = `p&ss "wörd"/+????>>>` + "\n"
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
		{"in a query, digits in lower case", "key=" + lower(url.QueryEscape(value)), "rd%22"},
		{"as Python quotes it", "key=" + strings.ReplaceAll(url.PathEscape(value), "%2F", "/"), "rd%22"},
		{"every byte as a URL has it", percent(value), "%72%64"},
		{"every byte so, in lower case", lower(percent(value)), "%72%64"},
		{"in JSON with slashes escaped", strings.ReplaceAll(string(inJSON), "/", `\/`), "rd\\\""},
		{"in JSON of ASCII alone", strings.ReplaceAll(string(inJSON), "ö", `\u00f6`), `w\u00f6rd`},
		{"in JSON of ASCII alone, upper case", strings.ReplaceAll(string(inJSON), "ö", `\u00F6`), `w\u00F6rd`},
		{"in JSON that escapes what HTML minds", strings.NewReplacer("+", `\u002b`, "&", `\u0026`).Replace(string(inJSON)), `\u002b`},
		{"a line in JSON", strings.ReplaceAll(pem, "\n", `\n`), "MIIE"},
		{"a line in base64", base64.StdEncoding.EncodeToString([]byte(`MIIEvQIBADANBgkq`)), base64.StdEncoding.EncodeToString([]byte(`MIIEvQIBADANBgkq`))[:16]},
		{"base64 in a URL", url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(value))), "%2B"},
		{"in base64", base64.StdEncoding.EncodeToString([]byte(value)), base64.StdEncoding.EncodeToString([]byte(value))[2:12]},
		{"in base64 behind a user name", base64.StdEncoding.EncodeToString([]byte("user:" + value)), base64.StdEncoding.EncodeToString([]byte("user:" + value))[8:20]},
		{"in base64 for URLs", base64.URLEncoding.EncodeToString([]byte("me" + value)), base64.URLEncoding.EncodeToString([]byte("me" + value))[16:27]},
	}
	m := secret.NewMasker(values)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(tt.output, tt.hidden) {
				t.Fatalf("the test is wrong: %q not in %q", tt.hidden, tt.output)
			}
			masked, _ := m.Mask([]byte(tt.output), true)
			if strings.Contains(string(masked), tt.hidden) || len(masked) != len(tt.output) {
				t.Errorf("%q became %q", tt.output, masked)
			}
		})
	}
}

// lower has the digits of percent-encoding in lower case.
func lower(text string) string {
	return regexp.MustCompile("%[0-9A-F]{2}").ReplaceAllStringFunc(text, strings.ToLower)
}

// percent encodes every byte.
func percent(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

func TestMasker_LeaveOtherTextAlone(t *testing.T) {
	const output = "abc }\n200 OK\n"
	masked, _ := masker("{\n  \"key\": \"abcdefgh\"\n}\n").Mask([]byte(output), true)
	if string(masked) != output {
		t.Errorf("%q became %q", output, masked)
	}
}

func BenchmarkMask(b *testing.B) {
	data := bytes.Repeat([]byte("a line of a build's output, 48 bytes long, more\n"), 1<<20/48)
	m := masker("sk-ant-api03-0123456789abcdef", strings.Repeat("line of a key\n", 20))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		m.Mask(data, false)
	}
}
