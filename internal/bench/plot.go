package bench

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// plotTitles are the titles of the plots: those that Row.Plot names, and the burst.
var plotTitles = map[string]string{
	"process": "Submit to first output: process lab",
	"slow":    "Submit to first output: process lab, 0.8 s per tool start",
	"qemu":    "Submit to first output: QEMU lab",
	"burst":   "Submit to first output: 20 jobs at once, process lab",
}

// PlotFile returns a plot's file name in embed/docs.
func PlotFile(name string) string { return "benchmark-" + name + ".svg" }

// Plots returns the plots for which there are measurements, as SVG by name: for each lab, the times
// to first output (bars to the median, lines to the 90th percentile); for the burst, the share of
// jobs that have their first output by a given time.
func Plots(all []Series) map[string][]byte {
	plots := map[string][]byte{}
	for name, title := range plotTitles {
		var rows []Series
		for _, s := range all {
			i := slices.IndexFunc(Rows, func(r Row) bool { return r.Name == s.About.Row })
			if Rows[i].Plot == name && len(s.values(FirstOutput)) > 0 {
				rows = append(rows, s)
			}
		}
		if len(rows) > 0 {
			plots[name] = bars(title, rows)
		}
	}
	var bursts []Series
	for _, s := range all {
		if strings.HasPrefix(s.About.Row, "burst") && len(s.values(FirstOutput)) > 0 {
			bursts = append(bursts, s)
		}
	}
	if len(bursts) > 0 {
		plots["burst"] = steps(plotTitles["burst"], bursts)
	}
	return plots
}

func bars(title string, rows []Series) []byte {
	const each = 26
	most := 0.0
	for _, s := range rows {
		most = max(most, quantile(s.values(FirstOutput), 0.9)/1000)
	}
	c := newChart(title, "seconds", 165, float64(each*len(rows)), most)
	for i, s := range rows {
		values := s.values(FirstOutput)
		median, p90 := c.x(quantile(values, 0.5)/1000), c.x(quantile(values, 0.9)/1000)
		y := top + each*(float64(i)+0.5)
		_, short, _ := strings.Cut(titleOf(s.About.Row), ": ") // the plot's title names the lab
		c.text(c.left-8, y+3.5, 10, "end", short)
		c.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="14" fill="#4c8bc9"/>`, c.left, y-7, median-c.left)
		c.add(`<path d="M%.1f %.1fH%.1fM%.1f %.1fv5" stroke="#333"/>`, median, y, p90, p90, y-2.5)
	}
	return c.end()
}

// steps draws, for each series, the share of values up to each value.
func steps(title string, rows []Series) []byte {
	most := 0.0
	for _, s := range rows {
		most = max(most, slices.Max(s.values(FirstOutput))/1000)
	}
	c := newChart(title, "seconds to first output", 60, 180, most)
	c.text(10, 20, 10, "start", "share of jobs")
	for share := 0.0; share <= 100; share += 20 {
		y := c.bottom - (c.bottom-top)*share/100
		c.add(`<path d="M%.1f %.1fH%d" stroke="#ccc"/>`, c.left, y, right)
		c.text(c.left-6, y+3.5, 10, "end", fmt.Sprintf("%g %%", share))
	}
	for n, s := range rows {
		colour, sorted := []string{"#4c8bc9", "#c9764c"}[n%2], s.values(FirstOutput)
		line := fmt.Sprintf("M%.1f %.1f", c.left, c.bottom)
		for i, v := range sorted {
			line += fmt.Sprintf("H%.1fV%.1f", c.x(v/1000), c.bottom-(c.bottom-top)*float64(i+1)/float64(len(sorted)))
		}
		c.add(`<path d="%s" fill="none" stroke="%s" stroke-width="1.5"/>`, line, colour)
		if len(rows) > 1 { // which row it is
			y := c.bottom - 10 - 16*float64(len(rows)-1-n)
			_, short, _ := strings.Cut(titleOf(s.About.Row), ": ")
			c.text(right-30, y+3.5, 10, "end", short)
			c.add(`<path d="M%d %.1fh20" stroke="%s" stroke-width="1.5"/>`, right-24, y, colour)
		}
	}
	return c.end()
}

// chart is a plot on white, to be read on any page, with time from left to right.
type chart struct {
	strings.Builder
	left, bottom float64
	most         float64 // seconds, at the right end
}

// Edges of a chart's area, and its total width. Text is above and below the area.
const top, right, width = 30, 580, 600

// newChart draws everything around the area, which has the given height.
func newChart(title, x string, left, height, most float64) *chart {
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, part := range []float64{0.2, 0.5, 1, 2} { // at most 6 lines
		if most/(step*part) < 6 {
			step *= part
			break
		}
	}
	c := &chart{left: left, bottom: top + height, most: most * 1.02}
	c.add(`<svg xmlns="http://www.w3.org/2000/svg" role="img" width="%dpt" height="%gpt" viewBox="0 0 %[1]d %[2]g" font-family="Liberation Sans, Arial, Helvetica, sans-serif">`, width, c.bottom+40)
	c.add(`<title>%s</title>`, html.EscapeString(title))
	c.add(`<rect width="100%%" height="100%%" fill="#fff"/>`)
	c.text(width/2, 18, 12, "middle", title)
	c.text((left+right)/2, c.bottom+34, 12, "middle", x)
	for i := 0.0; i*step <= c.most; i++ {
		c.add(`<path d="M%.1f %dV%g" stroke="#ccc"/>`, c.x(i*step), top, c.bottom)
		c.text(c.x(i*step), c.bottom+16, 10, "middle", fmt.Sprintf("%.3g", i*step))
	}
	return c
}

func (c *chart) x(seconds float64) float64 { return c.left + (right-c.left)*seconds/c.most }

func (c *chart) add(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

func (c *chart) text(x, y float64, size int, anchor, text string) {
	c.add(`<text x="%.1f" y="%.1f" font-size="%d" text-anchor="%s">%s</text>`, x, y, size, anchor, html.EscapeString(text))
}

func (c *chart) end() []byte {
	c.add("</svg>")
	return []byte(c.String())
}
