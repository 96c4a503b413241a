package mcptool

import (
	"context"
	"fmt"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

type cleanupInput struct {
	OlderThan string `json:"older_than,omitempty" jsonschema_description:"Only jobs that finished longer ago than this, such as 30m or 24h. Default: all finished jobs."`
}

type cleanupOutput struct {
	Count int `json:"count" jsonschema_description:"Jobs deleted."`
}

func cleanupCompletedJobs(e job.Engine) server.ServerTool {
	return define("cleanup_completed_jobs", "Delete finished jobs",
		"Delete finished jobs with their output and artifacts. Running jobs, and jobs whose VM still exists, are kept.",
		hints{destructive: true, idempotent: true},
		func(ctx context.Context, in cleanupInput) (cleanupOutput, error) {
			var age time.Duration
			if in.OlderThan != "" {
				var err error
				if age, err = time.ParseDuration(in.OlderThan); err != nil || age < 0 {
					var bad faults
					bad.add("older_than", fmt.Sprintf("%q is not a duration", in.OlderThan), "give one such as 30m or 24h")
					return cleanupOutput{}, bad.err()
				}
			}
			count, err := e.Cleanup(ctx, age)
			return cleanupOutput{Count: count}, err
		})
}
