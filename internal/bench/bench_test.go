package bench

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
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
	plots, err := Plots(all)
	if err != nil {
		t.Fatal(err)
	}
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
