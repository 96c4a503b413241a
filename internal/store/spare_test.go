package store

import (
	"strings"
	"testing"

	"linus/internal/job"
)

func TestSpare_KeepsSomeOfTheFileSystemFree(t *testing.T) {
	sqliteOnly(t)
	for reserve, says := range map[int64]string{0: "", 1: "", 1 << 60: "MiB are kept for running jobs (LINUS_STATE_RESERVE)"} {
		err := openStore(t, Options{Dir: t.TempDir(), Reserve: reserve}).Spare()
		if (err != nil) != (says != "") || err != nil && (!job.IsEngineFault(err) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%d bytes reserved: %v", reserve, err)
		}
	}
}
