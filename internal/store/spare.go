package store

import (
	"fmt"

	"linus/internal/job"
)

// Spare returns a *job.OwnFault if the state directory's file system has less space free than is
// reserved for running jobs: their output, and what becomes of them.
func (s *Store) Spare() error {
	if s.dir == "" || s.reserve == 0 {
		return nil
	}
	free, known := freeBytes(s.dir)
	if !known || free >= s.reserve {
		return nil
	}
	return &job.OwnFault{Err: fmt.Errorf("the state directory has %d MiB free, and %d MiB are kept for running jobs (LINUS_STATE_RESERVE); free some, or remove finished jobs",
		free>>20, s.reserve>>20)}
}
