package junit_test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"linus/internal/junit"
)

const pytest = `<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite name="pytest" errors="9" tests="1" time="0.1">
<properties><property name="a" value="b"/></properties>
<testcase classname="test_a" name="test_ok" time="0.001"/>
<testcase classname="test_a" name="test_bad"><failure message="assert 1 == 2">
 def test_bad(): &lt;b&gt;
</failure><system-out>noise</system-out></testcase>
<testcase name="later"><skipped/></testcase>
<testsuite name="inner"><testcase name="boom"><error type="E">x</error></testcase></testsuite>
</testsuite></testsuites>`

// A report that is not read is said to be, and not taken for a file of another kind: what it says of
// tests is missing.
func TestCollect_SaysWhatIsNotRead(t *testing.T) {
	const suite = `<testsuite><testcase name="a"/></testsuite>`
	files := map[string]io.Reader{
		"gone.xml":   iotest.ErrReader(errors.New("the connection is lost")),
		"latin.xml":  strings.NewReader(`<?xml version="1.0" encoding="ISO-8859-1"?>` + suite),
		"report.xml": strings.NewReader(suite),
		"page.xml":   strings.NewReader(`<html/>`),
		"text.xml":   strings.NewReader(`no XML <`),
		"empty.xml":  strings.NewReader(""),
	}
	r, left := junit.Collect(slices.Sorted(maps.Keys(files)), false, func(name string) (io.ReadCloser, error) { return io.NopCloser(files[name]), nil })
	if r.Tests != 1 || len(left) != 2 || left[0] != "gone.xml: the connection is lost" || !strings.HasPrefix(left[1], "latin.xml: ") || !strings.Contains(left[1], "ISO-8859-1") {
		t.Errorf("%d tests, left %q", r.Tests, left)
	}
}

func TestAdd_MergesWhatIsKnown(t *testing.T) {
	var r junit.Report
	for _, name := range []string{"go=1.25", ""} {
		if err := r.Add(name, strings.NewReader(pytest)); err != nil {
			t.Fatal(err)
		}
	}
	if want := (junit.Totals{Tests: 8, Failures: 2, Errors: 2, Skipped: 2}); r.Totals != want {
		t.Errorf("totals %+v: counted, and not what the file says", r.Totals)
	}
	if r.String() != "8 tests, 4 failed, 2 skipped" {
		t.Error(r.String())
	}
	var names []string
	for _, s := range r.Suites {
		names = append(names, s.Name)
	}
	if diff := cmp.Diff([]string{"go=1.25: pytest: inner", "go=1.25: pytest", "pytest: inner", "pytest"}, names); diff != "" {
		t.Error(diff)
	}
	if said := r.Suites[1].Cases[1].Wrong(); said.Message != "assert 1 == 2" || said.Text != "def test_bad(): <b>" {
		t.Errorf("%+v", said)
	}
	var out bytes.Buffer
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	var again junit.Report
	if err := again.Add("", &out); err != nil {
		t.Fatal(err)
	}
	r.XMLName = again.XMLName
	if diff := cmp.Diff(r, again); diff != "" {
		t.Error(diff)
	}
}

func TestAdd_RefusesTheHostile(t *testing.T) {
	deep := strings.Repeat("<testsuite>", 1000)
	for name, file := range map[string]string{
		"nothing":         "",
		"other XML":       "<coverage/>",
		"no XML":          "\x00\x01",
		"not whole":       `<testsuite><testcase name="a">`,
		"suites in depth": deep,
		"entities":        `<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;">]><testsuite><testcase name="&b;"/></testsuite>`,
		"tests":           "<testsuite>" + strings.Repeat("<testcase/>", 60_000) + "</testsuite>",
		"bytes":           "<testsuite><!--" + strings.Repeat(" ", junit.MaxFile) + "--></testsuite>",
		"deep in a test":  "<testsuite><testcase>" + strings.Repeat("<a>", 200_000),
	} {
		var r junit.Report
		err := r.Add("x", strings.NewReader(file))
		if err == nil || len(r.Suites) > 0 || r.Tests > 0 {
			t.Errorf("%s: %v, %+v", name, err, r.Totals)
		}
		if name == "other XML" && !errors.Is(err, junit.ErrOther) {
			t.Error(err)
		}
	}
	var r junit.Report
	if err := r.Add("", strings.NewReader(`<testsuite><testcase name="`+strings.Repeat("é", 9000)+`"/></testsuite>`)); err != nil || len(r.Suites[0].Cases[0].Name) > 600 {
		t.Errorf("a long name: %v", err)
	}
}

func FuzzAdd(f *testing.F) {
	f.Add(pytest)
	f.Fuzz(func(t *testing.T, file string) {
		var r junit.Report
		if r.Add("p", strings.NewReader(file)) != nil {
			return
		}
		var out bytes.Buffer
		if err := r.Write(&out); err != nil {
			t.Fatal(err)
		}
		var again junit.Report
		if err := again.Add("", &out); err != nil && r.Tests > 0 || again.Totals != r.Totals {
			t.Errorf("%v: %+v, then %+v", err, r.Totals, again.Totals)
		}
	})
}
