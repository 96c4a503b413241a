package web

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"linus/internal/job"
)

// usage shows what jobs and VMs have used. With ?as=csv the response is a file.
func (p *pages) usage(w http.ResponseWriter, r *http.Request) {
	asked := r.URL.Query()
	q := job.UsageQuery{By: asked.Get("by")}
	since, err := job.ParseTime("since", asked.Get("since"))
	var all []job.Usage
	if q.Since = since; err == nil {
		all, err = p.Engine.Usage(r.Context(), q)
	}
	if err != nil {
		p.failed(w, r, err)
		return
	}
	if asked.Get("as") == "csv" {
		attachment(w, "usage.csv")
		_ = csv.NewWriter(w).WriteAll(job.UsageTable(q, all)) // fails only if the client is gone
		return
	}
	v := listView{
		viewer: p.viewer(r), Section: "usage", Heading: "Usage", Help: "operate",
		About:   fmt.Sprintf("What jobs have used: their VMs from leaving the queue to the end, and VMs that stay, while they run. Of the last %d days unless since= says otherwise.", job.UsageDays),
		Columns: []string{cmp.Or(strings.TrimPrefix(q.By, job.UsageLabel), "Of"), "Jobs", "VM hours", "CPU hours", "GiB hours", "Wait, median", "Wait, 95th percentile", "Failed"},
	}
	for _, by := range append([]string{""}, job.UsageKinds...) {
		asked.Set("by", by)
		v.Links = append(v.Links, link{"/usage?" + asked.Encode(), cmp.Or(by, "all")})
	}
	asked.Set("by", q.By)
	asked.Set("as", "csv")
	v.Links = append(v.Links, link{"/usage?" + asked.Encode(), "CSV"})
	for _, u := range all {
		var why []string
		for _, reason := range slices.Sorted(maps.Keys(u.Failed)) {
			why = append(why, fmt.Sprintf("%s %d", reason, u.Failed[reason]))
		}
		seconds := func(n float64) string { return fmt.Sprintf("%.1f s", n) }
		v.Rows = append(v.Rows, []any{u.Of, u.Jobs, u.VMHours, u.CPUHours, u.GiBHours, seconds(u.QueueP50), seconds(u.QueueP95), strings.Join(why, ", ")})
	}
	p.render(w, r, http.StatusOK, "list", v)
}
