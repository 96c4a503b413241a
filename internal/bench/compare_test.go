package bench_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/bench"
)

func TestCompare_PairsByRound(t *testing.T) {
	t.Parallel()
	// The machine becomes slower; the ratio of each pair does not see it.
	base := []bench.Sample{{"attach_ms": 10, "job_ms": 5}, {"attach_ms": 20}, {"attach_ms": 40, "idle_mb": 1}, {"attach_ms": 7}}
	head := []bench.Sample{{"attach_ms": 11}, {"attach_ms": 26, "job_ms": 5}, {"attach_ms": 40}}
	got := bench.Compare(base, head)
	want := []bench.Ratio{{Measure: "attach_ms", Base: 20, Head: 26, Median: 1.1, Least: 1, Most: 1.3, Best: 1.1, Pairs: 3}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for want, of := range map[float64][]float64{3: {3}, 2: {1, 3}, 5: {1, 5, 100}, 4: {1, 3, 5, 9}} {
		if got := bench.Median(of); got != want {
			t.Errorf("Median(%v) = %v, want %v", of, got, want)
		}
	}
}

func TestWriteRatios_SaysWhatToDo(t *testing.T) {
	t.Parallel()
	bounds, err := bench.ReadBounds("../..")
	if err != nil {
		t.Fatal(err)
	}
	all := func(ratio float64) (ratios []bench.Ratio) {
		for _, m := range bench.Compared {
			ratios = append(ratios, bench.Ratio{Measure: m.Name, Base: 10, Head: 10 * ratio, Median: ratio, Least: ratio, Most: ratio, Best: ratio, Pairs: 1})
		}
		return ratios
	}
	var table strings.Builder
	if remedy := bench.WriteRatios(&table, "v1.0.0", all(1), bounds); remedy != "" {
		t.Errorf("with equal sides: %s", remedy)
	}
	for _, m := range bench.Compared {
		if !strings.Contains(table.String(), m.Title) {
			t.Errorf("the table lacks %q:\n%s", m.Title, &table)
		}
	}
	slower := all(1)
	slower[0].Median = 9
	if remedy := bench.WriteRatios(&table, "v1.0.0", slower, bounds); remedy != "" {
		t.Errorf("noise on one side: %s", remedy)
	}
	slower[0].Best = bounds[slower[0].Measure] + 0.01
	for name, ratios := range map[string][]bench.Ratio{"attach_ms is 1.": slower, "attach_ms was not measured": slower[1:]} {
		remedy := bench.WriteRatios(&table, "v1.0.0", ratios, bounds)
		for _, part := range []string{name, "git bisect start HEAD v1.0.0", bench.BoundsFile} {
			if !strings.Contains(remedy, part) {
				t.Errorf("the remedy lacks %q: %s", part, remedy)
			}
		}
		if strings.Count(remedy, "_ms") != 1 {
			t.Errorf("one measure is beyond its bound, and it says: %s", remedy)
		}
	}
}
