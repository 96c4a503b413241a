package executor

import "slices"

// queue holds the IDs of jobs that have no run yet; a job's row is read when it is its turn. Principals
// take turns, and each principal's jobs start in the order of their creation. The zero value is empty.
type queue struct {
	ready   []string // these need no slot: they share a VM, or were cancelled
	waiting []string // for a slot, oldest first: IDs sort by creation

	of      map[string]string // principals of waiting jobs by ID; missing: the operator
	unknown bool              // the principals of some added jobs must still be read
	turn    int               // number of the last start
	served  map[string]int    // each principal's turn of its last start
}

// add puts a job in line for a slot.
func (q *queue) add(id string) {
	if at, there := slices.BinarySearch(q.waiting, id); !there && !slices.Contains(q.ready, id) {
		q.waiting = slices.Insert(q.waiting, at, id)
		q.unknown = true
	}
}

// addOf is add for a job whose principal is known.
func (q *queue) addOf(id, principal string) {
	unknown := q.unknown
	q.add(id)
	q.unknown = unknown
	q.know(map[string]string{id: principal})
}

// know sets the principals of jobs. It ignores jobs that are not in line.
func (q *queue) know(principals map[string]string) {
	if q.of == nil {
		q.of = map[string]string{}
	}
	for id, principal := range principals {
		if _, there := slices.BinarySearch(q.waiting, id); there && principal != "" {
			q.of[id] = principal
		}
	}
}

// addReady puts a job that needs no slot before all jobs that wait for one.
func (q *queue) addReady(id string) {
	q.remove(id)
	q.ready = append(q.ready, id)
}

func (q *queue) remove(id string) {
	if at := slices.Index(q.ready, id); at >= 0 {
		q.ready = slices.Delete(q.ready, at, at+1)
	}
	switch at, there := slices.BinarySearch(q.waiting, id); {
	case there && at == 0:
		q.waiting = q.waiting[1:] // the common case, and the line may be long
	case there:
		q.waiting = slices.Delete(q.waiting, at, at+1)
	}
	delete(q.of, id)
}

// begun removes a job that starts and records its principal's turn.
func (q *queue) begun(id, principal string) {
	q.remove(id)
	if q.served == nil {
		q.served = map[string]int{}
	}
	q.turn++
	q.served[principal] = q.turn
}

// next returns the job to start next; slot says whether a slot is free.
func (q *queue) next(slot bool) (id string, ok bool) {
	switch {
	case len(q.ready) > 0:
		return q.ready[0], true
	case slot && len(q.waiting) > 0:
		return q.first(), true
	}
	return "", false
}

// first returns the oldest job of the principal that has waited longest for a turn.
func (q *queue) first() string {
	best := q.waiting[0]
	if len(q.of) == 0 {
		return best // all belong to the operator
	}
	for _, id := range q.waiting {
		if q.served[q.of[id]] < q.served[q.of[best]] {
			best = id
		}
	}
	return best
}

// ahead returns how many jobs come before this one in the line for a slot, if none is added; false
// if it is not in line.
func (q *queue) ahead(id string) (int, bool) {
	at, there := slices.BinarySearch(q.waiting, id)
	if !there || len(q.of) == 0 {
		return at, there
	}
	own, counts, firsts := q.of[id], map[string]int{}, map[string]int{}
	for i, other := range q.waiting {
		p := q.of[other]
		if _, seen := firsts[p]; !seen {
			firsts[p] = i
		}
		if p != own || i < at {
			counts[p]++
		}
	}
	n := counts[own]
	for p, count := range counts {
		if p == own {
			continue
		}
		turns := counts[own] // turns of the other principal before this job
		if q.served[p] < q.served[own] || q.served[p] == q.served[own] && firsts[p] < firsts[own] {
			turns++
		}
		n += min(count, turns)
	}
	return n, true
}

func (q *queue) empty() bool { return len(q.ready)+len(q.waiting) == 0 }
