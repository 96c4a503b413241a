package telemetry

import (
	"sync"

	"linus/internal/job"
)

const (
	mostValues = 50 // per key
	otherValue = "other"
)

// labelled turns some labels of jobs and VMs into labels of metrics. It passes only the first
// mostValues values of each key: users may create any number of values, and each one is a series.
type labelled struct {
	keys []string

	mu   sync.Mutex
	seen []map[string]bool // values, by the key's index
}

func newLabelled(keys []string) *labelled {
	l := &labelled{keys: keys, seen: make([]map[string]bool, len(keys))}
	for i := range l.seen {
		l.seen[i] = map[string]bool{}
	}
	return l
}

// names returns the metrics' label names, after others.
func (l *labelled) names(others ...string) []string {
	for _, key := range l.keys {
		others = append(others, "label_"+job.MetricKey(key))
	}
	return others
}

// values returns the metrics' label values for labels, after others.
func (l *labelled) values(labels map[string]string, others ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, key := range l.keys {
		value := labels[key]
		switch known := l.seen[i]; {
		case value == "" || known[value]:
		case len(known) >= mostValues:
			value = otherValue
		default:
			known[value] = true
		}
		others = append(others, value)
	}
	return others
}
