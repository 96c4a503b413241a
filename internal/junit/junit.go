// Package junit merges JUnit XML reports into one. The files come from VMs, which are hostile: reads
// are bounded, and only known parts of the format are kept. It knows nothing of jobs.
package junit

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Bounds of what is read.
const (
	MaxFile  = 16 << 20 // bytes
	maxFiles = 1000
	maxBytes = 64 << 20 // of all files
	maxCases = 50_000   // of a report
	maxDepth = 20       // of nested suites
	maxText  = 16 << 10 // bytes of each text of a test
	maxName  = 500      // bytes of a name
)

// Totals count tests.
type Totals struct {
	Tests    int `xml:"tests,attr" json:"tests"`
	Failures int `xml:"failures,attr" json:"failures"`
	Errors   int `xml:"errors,attr" json:"errors"`
	Skipped  int `xml:"skipped,attr" json:"skipped"`
}

// Failed counts the tests that did not pass.
func (t Totals) Failed() int { return t.Failures + t.Errors }

// String describes the totals for people; empty if there are no tests.
func (t Totals) String() string {
	if t.Tests == 0 {
		return ""
	}
	text := fmt.Sprintf("%d tests", t.Tests)
	if t.Tests == 1 {
		text = "1 test"
	}
	if n := t.Failed(); n > 0 {
		text += fmt.Sprintf(", %d failed", n)
	}
	if t.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", t.Skipped)
	}
	return text
}

func (t *Totals) add(more Totals) {
	t.Tests, t.Failures, t.Errors, t.Skipped = t.Tests+more.Tests, t.Failures+more.Failures, t.Errors+more.Errors, t.Skipped+more.Skipped
}

// Report is a report with one level of suites.
type Report struct {
	XMLName xml.Name `xml:"testsuites" json:"-"`
	Totals
	Suites []Suite `xml:"testsuite" json:"suites"`
}

// Suite is a suite of tests.
type Suite struct {
	Name string `xml:"name,attr" json:"name"`
	Totals
	Cases []Case `xml:"testcase" json:"cases"`
}

// Case is a test. It has passed if Failure, Error and Skipped are nil.
type Case struct {
	Name    string `xml:"name,attr" json:"name"`
	Class   string `xml:"classname,attr,omitempty" json:"class,omitempty"`
	File    string `xml:"file,attr,omitempty" json:"file,omitempty"`
	Time    string `xml:"time,attr,omitempty" json:"seconds,omitempty"`
	Failure *Said  `xml:"failure" json:"failure,omitempty"`
	Error   *Said  `xml:"error" json:"error,omitempty"`
	Skipped *Said  `xml:"skipped" json:"skipped,omitempty"`
}

// Said is what a test reports.
type Said struct {
	Message string `xml:"message,attr,omitempty" json:"message,omitempty"`
	Type    string `xml:"type,attr,omitempty" json:"type,omitempty"`
	Text    string `xml:",chardata" json:"text,omitempty"`
}

// Wrong returns what a failed test reports; nil if the test passed or was skipped.
func (c Case) Wrong() *Said {
	if c.Failure != nil {
		return c.Failure
	}
	return c.Error
}

// ErrOther is returned for a file that is not a report.
var ErrOther = errors.New("is no JUnit report")

// Add adds the suites of a file, with prefix before their names. On error it adds nothing.
func (r *Report) Add(prefix string, file io.Reader) error {
	limited := &io.LimitedReader{R: file, N: MaxFile + 1}
	p := &parser{in: xml.NewDecoder(limited), room: maxCases - r.Tests}
	start, err := p.root()
	if err == nil {
		err = p.suites(start, prefix, 0)
	}
	if limited.N == 0 {
		return fmt.Errorf("has more than %d bytes", MaxFile)
	}
	if err != nil {
		return err
	}
	r.Merge(p.found)
	return nil
}

// Collect merges the reports among the files with these names. With ofJobs, a name begins with a
// job's name and a slash. XML of other kinds is skipped; left lists the other files that were left
// out, with the reason.
func Collect(names []string, ofJobs bool, open func(name string) (io.ReadCloser, error)) (r Report, left []string) {
	read, room := 0, int64(maxBytes)
	for _, name := range names {
		if !strings.HasSuffix(name, ".xml") {
			continue
		}
		if read++; read > maxFiles || room <= 0 {
			return r, append(left, fmt.Sprintf("%s: more than %d files, or %d bytes", name, maxFiles, int64(maxBytes)))
		}
		prefix := ""
		if ofJobs {
			prefix, _, _ = strings.Cut(name, "/")
		}
		file, err := open(name)
		if err == nil {
			counted := &io.LimitedReader{R: file, N: room}
			err = errors.Join(r.Add(prefix, counted), file.Close())
			room = counted.N
		}
		if err != nil && !errors.Is(err, ErrOther) {
			left = append(left, name+": "+err.Error())
		}
	}
	return r, left
}

// Merge adds suites.
func (r *Report) Merge(suites []Suite) {
	for _, s := range suites {
		r.Suites = append(r.Suites, s)
		r.add(s.Totals)
	}
}

// Write writes the report as XML.
func (r *Report) Write(to io.Writer) error {
	if _, err := io.WriteString(to, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(to)
	e.Indent("", " ")
	if err := e.Encode(r); err != nil {
		return err
	}
	_, err := io.WriteString(to, "\n")
	return err
}

type parser struct {
	in    *xml.Decoder
	room  int // for tests
	found []Suite
}

func (p *parser) root() (xml.StartElement, error) {
	for {
		token, err := p.in.Token()
		if _, none := errors.AsType[*xml.SyntaxError](err); none || err == io.EOF { //nolint:errorlint // as Token returns it
			return xml.StartElement{}, ErrOther
		}
		if err != nil { // it may be a report
			return xml.StartElement{}, err
		}
		if start, is := token.(xml.StartElement); is {
			if name := start.Name.Local; name != "testsuites" && name != "testsuite" {
				return start, ErrOther
			}
			return start, nil
		}
	}
}

// suites reads a suite, or suites, and everything in it.
func (p *parser) suites(start xml.StartElement, name string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("has suites more than %d deep", maxDepth)
	}
	if start.Name.Local == "testsuite" {
		for _, a := range start.Attr {
			if a.Name.Local == "name" && a.Value != "" {
				name = strings.TrimPrefix(name+": "+a.Value, ": ")
			}
		}
	}
	own := Suite{Name: short(name, maxName)}
	for {
		token, err := p.in.Token()
		if err != nil {
			return fmt.Errorf("is no whole XML: %w", err)
		}
		switch token := token.(type) {
		case xml.EndElement:
			if len(own.Cases) > 0 {
				p.found = append(p.found, own)
			}
			return nil
		case xml.StartElement:
			switch token.Name.Local {
			case "testsuite":
				err = p.suites(token, name, depth+1)
			case "testcase":
				err = p.testcase(&own, token)
			default:
				err = p.in.Skip()
			}
			if err != nil {
				return err
			}
		}
	}
}

func (p *parser) testcase(s *Suite, start xml.StartElement) error {
	if p.room--; p.room < 0 {
		return fmt.Errorf("has more than %d tests", maxCases)
	}
	var c Case
	if err := p.in.DecodeElement(&c, &start); err != nil {
		return fmt.Errorf("is no whole XML: %w", err)
	}
	c.Name, c.Class, c.File, c.Time = short(c.Name, maxName), short(c.Class, maxName), short(c.File, maxName), short(c.Time, 30)
	s.Tests++
	for _, of := range []struct {
		said  *Said
		count *int
	}{{c.Failure, &s.Failures}, {c.Error, &s.Errors}, {c.Skipped, &s.Skipped}} {
		if said := of.said; said != nil {
			*of.count++
			said.Message, said.Type, said.Text = short(said.Message, maxText), short(said.Type, maxName), short(strings.TrimSpace(said.Text), maxText)
		}
	}
	if c.Failure != nil && c.Error != nil {
		s.Errors--
	}
	s.Cases = append(s.Cases, c)
	return nil
}

// short truncates a text to most bytes, at a character boundary.
func short(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "..."
}
