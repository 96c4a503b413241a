package bench

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Report returns the report as Markdown: where it was measured, the plots, and the
// table as the text of a fenced block.
func Report(all []Series, plots map[string][]byte) string {
	var b strings.Builder
	for _, machine := range distinct(all, func(a About) string { return a.Machine }) {
		fmt.Fprintf(&b, "Measured on: %s.\n", machine)
	}
	for _, name := range slices.Sorted(maps.Keys(plots)) {
		fmt.Fprintf(&b, "\n![Plot: %s](%s)\n", plotTitles[name], PlotFile(name))
	}
	b.WriteString("\n```text\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "\tmedian\tp90\tN\tversion\n")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t\t\t\t\n", titleOf(s.About.Row))
		for _, m := range Measures {
			values := s.values(m.Name)
			if len(values) == 0 {
				continue
			}
			p90 := ""
			if len(values) > 1 {
				p90 = format(m.Name, quantile(values, 0.9))
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\t%d\t%s\n", m.Title, format(m.Name, quantile(values, 0.5)), p90, len(values), s.About.Version)
		}
	}
	_ = w.Flush() // a strings.Builder takes everything
	b.WriteString("```\n")
	return trimLines(b.String())
}

func titleOf(name string) string {
	i := slices.IndexFunc(Rows, func(r Row) bool { return r.Name == name })
	return Rows[i].Title
}

func distinct(all []Series, of func(About) string) []string {
	var list []string
	for _, s := range all {
		if v := of(s.About); !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	return list
}

// format returns a value with its unit, to three digits.
func format(measure string, v float64) string {
	switch {
	case strings.HasSuffix(measure, "_per_s"):
		return digits(v) + "/s"
	case strings.HasSuffix(measure, "_mb"):
		return digits(v) + " MB"
	case strings.HasSuffix(measure, "_us"):
		return digits(v) + " us"
	case strings.HasPrefix(measure, "tool_"):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 1000: // ms
		return digits(v/1000) + " s"
	default:
		return digits(v) + " ms"
	}
}

func digits(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}
