package pve

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"linus/internal/lab/sys"
)

// apiTasks lists the tasks at work on VMs of the node. It keeps no history:
// `--source active` is all our scripts ask for. A task's ID names its process
// and that process's start, in hex, as PVE's does; and it lists 50 unless told otherwise.
func apiTasks(c *call, vars map[string]string) (any, error) {
	files, err := filepath.Glob(c.s.TaskPath("*"))
	if err != nil {
		return nil, err
	}
	tasks := []map[string]any{}
	for _, file := range files {
		pid, running := sys.ReadPidFile(file)
		start, _ := sys.ProcessStart(pid)
		if !running {
			continue
		}
		id, kind, _ := strings.Cut(strings.TrimPrefix(filepath.Base(file), "task-"), ".")
		if kind == "" {
			kind = "qmconfig"
		}
		tasks = append(tasks, map[string]any{
			"upid": fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:root@pam:", vars["node"], pid, start, 0, kind, id),
			"node": vars["node"], "pid": pid, "pstart": start, "type": kind, "id": id, "user": "root@pam",
		})
	}
	limit := 50
	if n, err := strconv.Atoi(c.opts["limit"]); err == nil {
		limit = n
	}
	return tasks[:min(limit, len(tasks))], nil
}
