package web_test

import (
	"context"
	"strings"
	"testing"

	"linus/internal/job"
)

func (e *engine) Usage(_ context.Context, q job.UsageQuery) ([]job.Usage, error) {
	if err := q.Check(); err != nil {
		return nil, err
	}
	return []job.Usage{{Of: "=1+1<b>", Jobs: 3, VMHours: 1.5, Failed: map[job.Reason]int{job.ReasonLost: 2}}}, nil
}

func TestUsage_IsATableAndAFile(t *testing.T) {
	v := loggedIn(t, sample())
	_, text := v.get("/usage?by=repository")
	for _, want := range []string{"=1&#43;1&lt;b&gt;", "1.5", "lost 2", `href="/usage?as=csv&amp;by=repository"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if _, text = v.get("/usage?by=repository&as=csv"); !strings.HasPrefix(text, "repository,jobs,") || !strings.Contains(text, "\n'=1+1<b>,3,1.5,") {
		t.Errorf("%s", text)
	}
	if code, _ := v.get("/usage?by=colour"); code != 422 {
		t.Errorf("by what there is not: %d", code)
	}
}
