package web

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"linus/internal/job"
)

// chartHeight is how high the columns of a chart are, in pixels.
const chartHeight = 64

// chartView are the last hours as two charts, jobs and waiting times, and as text.
type chartView struct {
	Hours []chartHour
	Jobs  int // all of them
	Top   int // the most in an hour
	Wait  time.Duration
	Cut   bool
	Text  string // what the charts show, in a sentence

	Height, Base int
}

// chartHour is an hour's columns. Positions and widths are percentages, heights are
// pixels.
type chartHour struct {
	job.Hour

	Left, Width string
	Middle      string
	Parts       []chartPart
	Median, Max chartPart
	Label       string // below it, if it has one
	Text        string
	Href        string // of its jobs
}

// chartPart is a piece of a column.
type chartPart struct {
	Class     string
	Y, Height int
}

// part returns a piece of a column that begins below, in pixels from the base.
func part(class string, below, height int) chartPart {
	return chartPart{class, chartHeight - below - height, height}
}

// scale returns a height for n of most; what is there is seen.
func scale(n, most float64) int {
	if n <= 0 || most <= 0 {
		return 0
	}
	return max(2, int(n/most*(chartHeight-4)))
}

// newChart returns the charts; nothing if nothing was submitted.
func newChart(a job.Activity) *chartView {
	v := &chartView{Cut: a.Cut, Height: chartHeight + 18, Base: chartHeight}
	failed, waiting := 0, 0
	for _, h := range a.Hours {
		v.Jobs += h.Jobs()
		failed += h.Failed
		waiting += h.Unfinished
		v.Top, v.Wait = max(v.Top, h.Jobs()), max(v.Wait, h.MaxWait)
	}
	if v.Jobs == 0 {
		return nil
	}
	step := 100 / float64(len(a.Hours))
	for i, h := range a.Hours {
		c := chartHour{Hour: h, Left: percent(step * (float64(i) + .12)), Width: percent(step * .76), Middle: percent(step * (float64(i) + .5))}
		below := 0
		for _, p := range []struct {
			class string
			n     int
		}{{"chart-ok", h.Succeeded}, {"chart-bad", h.Failed}, {"chart-busy", h.Unfinished}} {
			if height := scale(float64(p.n), float64(v.Top)); height > 0 {
				c.Parts = append(c.Parts, part(p.class, below, height))
				below += height
			}
		}
		c.Median = part("chart-median", 0, scale(float64(h.MedianWait), float64(v.Wait)))
		c.Max = part("chart-max", 0, scale(float64(h.MaxWait), float64(v.Wait)))
		if h.From.Hour()%6 == 0 && i > 0 && i < len(a.Hours)-1 {
			c.Label = h.From.UTC().Format("15:04")
		}
		c.Text = hourText(h)
		c.Href = "/jobs?" + url.Values{"since": {h.From.UTC().Format(time.RFC3339)}, "before": {h.From.Add(time.Hour).UTC().Format(time.RFC3339)}}.Encode()
		v.Hours = append(v.Hours, c)
	}
	v.Text = fmt.Sprintf("%d jobs in the last %d hours: %d succeeded, %d failed, %d unfinished", v.Jobs, len(a.Hours), v.Jobs-failed-waiting, failed, waiting)
	if v.Wait > 0 {
		v.Text += "; the longest wait for a start was " + shortDuration(v.Wait)
	}
	return v
}

func percent(n float64) string { return strings.TrimSuffix(fmt.Sprintf("%.2f", n), ".00") + "%" }

// hourText says what an hour's columns show.
func hourText(h job.Hour) string {
	text := fmt.Sprintf("%s UTC: %d jobs", h.From.UTC().Format("15:04"), h.Jobs())
	for _, p := range []struct {
		n    int
		name string
	}{{h.Succeeded, "succeeded"}, {h.Failed, "failed"}, {h.Unfinished, "unfinished"}} {
		if p.n > 0 {
			text += fmt.Sprintf(", %d %s", p.n, p.name)
		}
	}
	if h.Started > 0 {
		text += fmt.Sprintf("; waited %s, at most %s", shortDuration(h.MedianWait), shortDuration(h.MaxWait))
	}
	return text
}
