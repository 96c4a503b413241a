package bench

import (
	"bytes"
	"fmt"
	"image/color"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// plotTitles are the plots' titles: those of a Row.Plot, and that of the burst.
var plotTitles = map[string]string{
	"process": "Submit to first output: process lab",
	"slow":    "Submit to first output: process lab, 0.8 s per tool start",
	"qemu":    "Submit to first output: QEMU lab",
	"burst":   "Submit to first output: 20 jobs at once, process lab",
}

// PlotFile returns a plot's file name in embed/docs.
func PlotFile(name string) string { return "benchmark-" + name + ".svg" }

// Plots returns the plots there are measurements for, as SVG by name: of each lab the
// times to first output (bars to the median, lines to the 90th percentile), and of the
// burst how many jobs have their first output after how long.
func Plots(all []Series) (map[string][]byte, error) {
	plots := map[string][]byte{}
	for name, title := range plotTitles {
		var rows []Series
		for _, s := range all {
			i := slices.IndexFunc(Rows, func(r Row) bool { return r.Name == s.About.Row })
			if Rows[i].Plot == name && len(s.values(FirstOutput)) > 0 {
				rows = append(rows, s)
			}
		}
		if len(rows) == 0 {
			continue
		}
		svg, err := bars(title, rows)
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", name, err)
		}
		plots[name] = svg
	}
	if i := slices.IndexFunc(all, func(s Series) bool { return s.About.Row == "burst" }); i >= 0 {
		svg, err := steps(plotTitles["burst"], all[i].values(FirstOutput))
		if err != nil {
			return nil, fmt.Errorf("plot burst: %w", err)
		}
		plots["burst"] = svg
	}
	return plots, nil
}

var (
	barColour  = color.RGBA{R: 0x4c, G: 0x8b, B: 0xc9, A: 0xff}
	lineColour = color.RGBA{R: 0x33, G: 0x33, B: 0x33, A: 0xff}
)

// bars draws a bar for each series, the first one on top.
func bars(title string, rows []Series) ([]byte, error) {
	p := newPlot(title, "seconds")
	var medians plotter.Values
	var names []string
	var spread spreads
	for i, s := range slices.Backward(rows) {
		values := s.values(FirstOutput)
		median, p90 := quantile(values, 0.5)/1000, quantile(values, 0.9)/1000
		at := float64(len(rows) - 1 - i)
		medians = append(medians, median)
		names = append(names, shortTitle(s.About.Row)+strings.Repeat("\u00a0", 5)) // room for a wider font
		spread.XYs = append(spread.XYs, plotter.XY{X: median, Y: at})
		spread.XErrors = append(spread.XErrors, struct{ Low, High float64 }{0, p90 - median})
	}
	chart, err := plotter.NewBarChart(medians, vg.Points(14))
	if err != nil {
		return nil, err
	}
	chart.Horizontal, chart.Color, chart.LineStyle.Width = true, barColour, 0
	lines, err := plotter.NewXErrorBars(spread)
	if err != nil {
		return nil, err
	}
	lines.Color = lineColour
	p.Add(plotter.NewGrid(), chart, lines)
	p.NominalY(names...)
	return draw(p, vg.Points(float64(90+26*len(rows))))
}

// spreads are points with the distance to their 90th percentile.
type spreads struct {
	plotter.XYs
	plotter.XErrors
}

// steps draws how many of the values are below each of them.
func steps(title string, sorted []float64) ([]byte, error) {
	p := newPlot(title, "seconds to first output")
	p.Y.Label.Text, p.Y.Min = "share of jobs, %", 0
	points := plotter.XYs{{X: 0, Y: 0}}
	for i, v := range sorted {
		points = append(points, plotter.XY{X: v / 1000, Y: 100 * float64(i+1) / float64(len(sorted))})
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	line.StepStyle, line.Color, line.Width = plotter.PostStep, barColour, vg.Points(1.5)
	p.Add(plotter.NewGrid(), line)
	return draw(p, vg.Points(240))
}

// newPlot returns a plot on white, to be read on any page. Its padding leaves room for
// fonts that are wider than the one it is laid out with.
func newPlot(title, x string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White
	p.Title.Text, p.Title.Padding, p.X.Label.Text, p.X.Min = title, vg.Points(8), x, 0
	for _, style := range []*font.Font{&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font, &p.X.Tick.Label.Font, &p.Y.Tick.Label.Font} {
		style.Variant = "Sans"
	}
	p.Y.Padding = vg.Points(8)
	return p
}

// draw returns a plot as SVG.
func draw(p *plot.Plot, height vg.Length) ([]byte, error) {
	w, err := p.WriterTo(vg.Points(600), height, "svg")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_, err = w.WriteTo(&b)
	const laidOut, elsewhere = "Liberation Sans", "Liberation Sans, Arial, Helvetica, sans-serif" // of the same widths
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:"+laidOut), []byte("font-family:"+elsewhere)), err
}

// shortTitle is a row's title without its lab, which the plot's title names.
func shortTitle(row string) string {
	_, short, _ := strings.Cut(titleOf(row), ": ")
	return short
}
