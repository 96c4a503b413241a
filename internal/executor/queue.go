package executor

import "slices"

// queue holds the jobs that have no run yet, by ID; a job's row is read when it is its
// turn. The zero value is empty.
type queue struct {
	ready   []string // need no slot: they share a VM, or were cancelled
	waiting []string // for a slot, oldest first: IDs sort by creation
}

// add puts a job in line for a slot.
func (q *queue) add(id string) {
	if at, there := slices.BinarySearch(q.waiting, id); !there && !slices.Contains(q.ready, id) {
		q.waiting = slices.Insert(q.waiting, at, id)
	}
}

// addReady puts a job before all that wait for a slot, because it needs none.
func (q *queue) addReady(id string) {
	q.remove(id)
	q.ready = append(q.ready, id)
}

// remove takes a job out, if it is there.
func (q *queue) remove(id string) {
	if at := slices.Index(q.ready, id); at >= 0 {
		q.ready = slices.Delete(q.ready, at, at+1)
	}
	switch at, there := slices.BinarySearch(q.waiting, id); {
	case there && at == 0:
		q.waiting = q.waiting[1:] // most are taken from here, and the line may be long
	case there:
		q.waiting = slices.Delete(q.waiting, at, at+1)
	}
}

// next returns the job to start next; slot says whether one is free.
func (q *queue) next(slot bool) (id string, ok bool) {
	switch {
	case len(q.ready) > 0:
		return q.ready[0], true
	case slot && len(q.waiting) > 0:
		return q.waiting[0], true
	}
	return "", false
}

// ahead returns how many jobs are before this one in the line for a slot; false if it
// is not in line.
func (q *queue) ahead(id string) (int, bool) { return slices.BinarySearch(q.waiting, id) }

func (q *queue) empty() bool { return len(q.ready)+len(q.waiting) == 0 }
