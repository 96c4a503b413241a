package envfile_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/envfile"
)

func TestParse_Values(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"plain", "A=one", "one"},
		{"blanks around name and value", "  A\t=  one two \t\r\n", "one two"},
		{"comment behind", "A=vvvv # c", "vvvv"},
		{"number sign in a word", `A=x=y#no "comment" isn't`, `x=y#no "comment" isn't`},
		{"number sign that begins the value", "A=#1", "#1"},
		{"only a comment", "A= # nothing", ""},
		{"a comment at the equals sign", "A=# nothing", ""},
		{"a number sign alone", "A=#", ""},
		{"nothing", "A=", ""},
		{"nothing in quotes", "A=''", ""},
		{"export", "export  A=one", "one"},
		{"backslashes without quotes", `A=a\nb`, `a\nb`},
		{"no expansion", "A=$HOME", "$HOME"},
		{"single quotes", `A='  a\n"b" # $c '`, `  a\n"b" # $c `},
		{"double quotes", "A=\" \\n\\t\\\"\\$\\`\\\\ \\x 'b' # \" # c", " \n\t\"$`\\ \\x 'b' # "},
		{"several lines", "A='one\n\n# two'", "one\n\n# two"},
		{"line ends of Windows in quotes", "A=\"one\r\ntwo\"\r\n", "one\ntwo"},
		{"byte order mark", "\xef\xbb\xbfA=one", "one"},
		{"bytes that are no text", "A=\xff\xfe", "\xff\xfe"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := []envfile.Line{{Number: 1, Name: "A", Value: tt.want}}
			if diff := cmp.Diff(want, envfile.Parse([]byte(tt.text))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParse_ProblemsHaveLineAndNameAndNoValue(t *testing.T) {
	tests := []struct {
		name, text string
		want       []envfile.Line
	}{
		{"no equals sign", "# c\n\nhunter2\nB=2", []envfile.Line{{Number: 3, Problem: "is not NAME=value"}, {Number: 4, Name: "B", Value: "2"}}},
		{"a name with a dash", "hunter-2=x", []envfile.Line{{Number: 1, Problem: "is not NAME=value"}}},
		{"a name that is only export", "exportA=1\nexport=2\nexport =3", []envfile.Line{{Number: 1, Name: "exportA", Value: "1"}, {Number: 2, Name: "export", Value: "2"}, {Number: 3, Name: "export", Value: "3"}}},
		{"an open quote", "A='hunter2\nB=2", []envfile.Line{{Number: 1, Name: "A", Problem: "has a quote that does not end"}, {Number: 2, Name: "B", Value: "2"}}},
		{"a backslash before the closing quote", `A="hunter2\"`, []envfile.Line{{Number: 1, Name: "A", Problem: "has a quote that does not end"}}},
		{"text behind a quote", "A='1\n2\n3'\nB=\"hunter2\" x\nC=3", []envfile.Line{
			{Number: 1, Name: "A", Value: "1\n2\n3"}, {Number: 4, Name: "B", Problem: "has text after its closing quote"}, {Number: 5, Name: "C", Value: "3"},
		}},
		{"a name twice", "A=1\nA=2", []envfile.Line{{Number: 1, Name: "A", Value: "1"}, {Number: 2, Name: "A", Value: "2"}}},
		{"no line", "\n# A=1\n  # B=2\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, envfile.Parse([]byte(tt.text))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever a file holds, its lines have places in it, and what is written with
// quotes comes back as it was.
func FuzzParse(f *testing.F) {
	f.Add("A=vvvv # c\nexport B='x\ny'\nC=\"\\n\\\"\" # d\n")
	f.Add("\xef\xbb\xbfA=\"\r\n\\")
	f.Fuzz(func(t *testing.T, text string) {
		last := 0
		for _, l := range envfile.Parse([]byte(text)) {
			if l.Number <= last || l.Number > strings.Count(text, "\n")+1 || (l.Name == "") != (l.Problem == "is not NAME=value") || l.Name != "" && !envfile.IsName(l.Name) || l.Problem != "" && l.Value != "" {
				t.Errorf("%q has line %+v after %d", text, l, last)
			}
			last = l.Number
		}
		if strings.Contains(text, "\r") {
			return // with the \n behind it, it is a line end
		}
		value, quoted := text, "'"+text+"'"
		if strings.Contains(value, "'") {
			quoted = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
		}
		want := []envfile.Line{{Number: 1, Name: "A", Value: value}, {Number: 2 + strings.Count(value, "\n"), Name: "B", Value: strconv.Itoa(len(text))}}
		if diff := cmp.Diff(want, envfile.Parse([]byte("A="+quoted+" # c\nB="+strconv.Itoa(len(text))))); diff != "" {
			t.Errorf("%q: %s", quoted, diff)
		}
	})
}
