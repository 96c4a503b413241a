package bench

import (
	"bytes"
	"encoding/xml"
	"flag"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/doctest"
)

var update = flag.Bool("update", false, "make the report's table and plots from the measurements")

const root = "../.."

// What the report says is what was measured.
func TestReport_IsMadeFromTheMeasurements(t *testing.T) {
	all, err := ReadAll(Dir(root))
	if err != nil {
		t.Fatal(err)
	}
	plots := Plots(all)
	doctest.Keep(t, "benchmark", Report(all, plots), *update)
	docs := filepath.Join(root, "embed", "docs")
	for name, svg := range plots {
		path := filepath.Join(docs, PlotFile(name))
		if *update {
			if err := os.WriteFile(path, svg, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if there, _ := os.ReadFile(path); !bytes.Equal(there, svg) {
			t.Errorf("%s is stale: run make golden", path)
		}
	}
	files, err := filepath.Glob(filepath.Join(docs, PlotFile("*")))
	if err != nil || len(files) != len(plots) {
		t.Errorf("there are %d plots, and files %q", len(plots), files)
	}
}

// Every file of measurements is of a row, so that none is left out of the report.
func TestMeasurements_AreOfRows(t *testing.T) {
	files, err := os.ReadDir(Dir(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".jsonl")
		if !ok || !slices.ContainsFunc(Rows, func(r Row) bool { return r.Name == name }) {
			t.Errorf("%s is of no row", f.Name())
		}
	}
}

func TestSeries_ComeBackAsWritten(t *testing.T) {
	dir := t.TempDir()
	want := Series{
		About:   About{Row: "linked", Version: "abc", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Machine: "m"},
		Samples: []Sample{{FirstOutput: 1.5}, {"gone_ms": 2, "rss_mb": 3}},
	}
	if err := Write(dir, want); err != nil {
		t.Fatal(err)
	}
	all, err := ReadAll(dir)
	if diff := cmp.Diff([]Series{want}, all); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "vm.jsonl"), []byte("{\"row\":\"vm\"}\n{\"first_"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadAll(dir); err == nil || !strings.Contains(err.Error(), "vm.jsonl, line 2") {
		t.Errorf("a file that was cut off: %v", err)
	}
}

func TestReport_HasPlotsMedianAndP90OfEachMeasure(t *testing.T) {
	s := Series{About: About{Row: "linked", Version: "abc", Machine: "a machine"}}
	for i := range 10 {
		s.Samples = append(s.Samples, Sample{FirstOutput: float64(10-i) * 200})
	}
	s.Samples = append(s.Samples, Sample{"rss_mb": 41.25})
	want := `Measured on: a machine.

![Plot: Submit to first output: process lab](benchmark-process.svg)

` + "```text" + `
                                   median   p90     N   version
process lab: linked clone
  submit to first output           1.00 s   1.80 s  10  abc
  engine's memory                  41.2 MB          1   abc
` + "```\n"
	got := Report([]Series{s}, map[string][]byte{"process": nil})
	if strings.Join(strings.Fields(want), " ") != strings.Join(strings.Fields(got), " ") {
		t.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
	}
}

// Bars are as long as their medians, and lines reach to the 90th percentiles; both end where the
// axis says.
func TestPlots_AreToScale(t *testing.T) {
	of := func(row string, ms ...float64) Series {
		s := Series{About: About{Row: row}}
		for _, v := range ms {
			s.Samples = append(s.Samples, Sample{FirstOutput: v})
		}
		return s
	}
	plots := Plots([]Series{of("linked", 1000, 1000, 3000), of("floor", 2000), of("burst", 500, 1000), of("burst-restored", 250, 300, 350, 1000)})
	for name, svg := range plots {
		if err := xml.Unmarshal(svg, new(any)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	all := func(pattern, svg string) (numbers []float64) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(svg, -1) {
			n, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			numbers = append(numbers, n)
		}
		return numbers
	}
	svg := string(plots["process"])
	zero, two := all(`<text x="([0-9.]+)"[^>]*>0<`, svg), all(`<text x="([0-9.]+)"[^>]*>2<`, svg)
	widths, ends := all(`<rect x="165.0" y="[0-9.]+" width="([0-9.]+)"`, svg), all(`H([0-9.]+)M`, svg)
	if len(zero) != 1 || len(two) != 1 || len(widths) != 2 || len(ends) != 2 {
		t.Fatalf("0 at %v, 2 at %v, bars %v, lines to %v in %s", zero, two, widths, ends, svg)
	}
	second := (two[0] - zero[0]) / 2
	for i, want := range []struct{ got, seconds float64 }{{widths[0], 1}, {widths[1], 2}, {ends[0] - zero[0], 3}, {ends[1] - zero[0], 2}} {
		if math.Abs(want.got-want.seconds*second) > 0.2 {
			t.Errorf("%d: %g, want %g seconds of %g", i, want.got, want.seconds, second)
		}
	}
	if steps := all(`H[0-9.]+V([0-9.]+)`, string(plots["burst"])); !slices.Equal(steps, []float64{120, 30, 165, 120, 75, 30}) {
		t.Errorf("the bursts' steps are %v", steps)
	}
	if !strings.Contains(string(plots["burst"]), ">20 jobs at once, restored from a checkpoint<") {
		t.Errorf("the bursts have no names: %s", plots["burst"])
	}
}
