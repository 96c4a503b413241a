package pve

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"linus/internal/lab/sys"
)

// apiTasks lists the node's current tasks on VMs. There is no history: linus's scripts only ask for
// `--source active`. As in PVE, a task's ID names its process and the process's start time in hex,
// and the list has 50 entries unless a limit is given.
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
