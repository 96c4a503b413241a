package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// Compared are the measures of make compare, in the order in which they are shown. A name ends in
// its unit.
var Compared = []struct{ Name, Title string }{
	{"attach_ms", "attaching to a running engine"},
	{"attach_cpu_ms", "its CPU"},
	{"job_ms", "cold job in the process lab, submit to result"},
	{"engine_cpu_ms", "engine's CPU per job"},
	{"submit_cpu_us", "submit's CPU, client's process and engine"},
	{"list_ms", "list_jobs"},
	{"idle_mb", "engine's memory, idle"},
	{"used_mb", "engine's memory, after jobs"},
	{"binary_mb", "size of the binary"},
}

// Ratio compares a measure: the medians of both sides, and of head divided by base in each pair.
// Best is the least of head divided by the least of base, since other load on a machine only adds.
type Ratio struct {
	Measure                   string
	Base, Head                float64
	Median, Least, Most, Best float64
	Pairs                     int
}

// Compare returns the ratios of measures in pairs of samples. Both samples of a pair were taken on
// one machine, one after the other. A measure is left out if no pair has it on both sides.
func Compare(base, head []Sample) []Ratio {
	var all []Ratio
	for _, m := range Compared {
		var of [3][]float64 // base, head, head by base
		for i := range min(len(base), len(head)) {
			b, h := base[i][m.Name], head[i][m.Name]
			if b > 0 && h > 0 {
				of[0], of[1], of[2] = append(of[0], b), append(of[1], h), append(of[2], h/b)
			}
		}
		if len(of[2]) == 0 {
			continue
		}
		for _, list := range of {
			slices.Sort(list)
		}
		all = append(all, Ratio{
			Measure: m.Name, Base: Median(of[0]), Head: Median(of[1]), Median: Median(of[2]),
			Least: of[2][0], Most: of[2][len(of[2])-1], Best: of[1][0] / of[0][0], Pairs: len(of[2]),
		})
	}
	return all
}

// Median returns the median of sorted values: for an even number, the mean of the middle two.
func Median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Bounds are the ratios that make compare allows, by measure.
type Bounds map[string]float64

// BoundsFile is the file of the bounds, below the repository's root.
const BoundsFile = "testdata/compare.json"

// ReadBounds reads the bounds. There must be exactly one for each compared measure.
func ReadBounds(root string) (Bounds, error) {
	data, err := os.ReadFile(filepath.Join(root, BoundsFile))
	if err != nil {
		return nil, err
	}
	var bounds Bounds
	if err := json.Unmarshal(data, &bounds); err != nil {
		return nil, fmt.Errorf("%s: %w", BoundsFile, err)
	}
	for _, m := range Compared {
		if bounds[m.Name] < 1 {
			return nil, fmt.Errorf("%s: %s has to be 1 or more", BoundsFile, m.Name)
		}
	}
	if len(bounds) != len(Compared) {
		return nil, fmt.Errorf("%s has %d bounds for %d measures", BoundsFile, len(bounds), len(Compared))
	}
	return bounds, nil
}

// WriteRatios writes the ratios as a table. It returns what to do about those that exceed their
// bounds or were not measured, or "" if all is well.
func WriteRatios(w io.Writer, base string, ratios []Ratio, bounds Bounds) string {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\t%s\there\tratio\tspread\tof the least\tbound\tpairs\n", base)
	var beyond []string
	for _, m := range Compared {
		i := slices.IndexFunc(ratios, func(r Ratio) bool { return r.Measure == m.Name })
		if i < 0 {
			beyond = append(beyond, m.Name+" was not measured on both sides")
			continue
		}
		r, mark := ratios[i], ""
		if min(r.Median, r.Best) > bounds[m.Name] { // noise seldom moves both
			mark = "  <-"
			beyond = append(beyond, fmt.Sprintf("%s is %.2f times what it is at %s; its bound is %.2f", m.Name, min(r.Median, r.Best), base, bounds[m.Name]))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%.2f to %.2f\t%.2f\t%.2f\t%d%s\n", m.Title, format(m.Name, r.Base), format(m.Name, r.Head), r.Median, r.Least, r.Most, r.Best, bounds[m.Name], r.Pairs, mark)
	}
	_ = t.Flush() // what cannot be shown is not worth a failure
	if len(beyond) == 0 {
		return ""
	}
	return strings.Join(beyond, "\n") + fmt.Sprintf(`
Find the commit: git bisect start HEAD %[1]s && git bisect run make compare BASE=%[1]s
Mend it; or, if what it brings is worth its price, raise the bound in %[2]s, and say in the commit why.
A machine that was busy shows in the spread: N=20 makes more pairs.`, base, BoundsFile)
}
