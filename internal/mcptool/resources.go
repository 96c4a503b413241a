package mcptool

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// Bounds of a resource's contents, in bytes.
const (
	mostOutput   = 64 << 10
	mostArtifact = 8 << 20
)

const (
	resourcePrefix   = "linus://jobs/"
	outputTemplate   = resourcePrefix + "{id}/output"
	resultTemplate   = resourcePrefix + "{id}/result"
	artifactTemplate = resourcePrefix + "{id}/artifacts/{+path}"
)

const (
	usagePrefix   = "linus://usage/"
	usageTemplate = usagePrefix + "{+by}"
)

// The resources that do not belong to a job.
const (
	hostURI     = "linus://host"
	manifestURI = "linus://manifest"
)

// resources lists the report of the host, which check_host returns as well, and the complete schema
// of submit_job's manifest, which the list of tools has in a short form.
func resources(e job.Engine, has having) []server.ServerResource {
	all := []server.ServerResource{{
		Resource: mcp.NewResource(hostURI, "host-report", mcp.WithResourceTitle("The Proxmox host"), mcp.WithMIMEType("application/json"),
			mcp.WithResourceDescription("Whether the Proxmox host can run jobs, as check_host returns it. Reading takes a few seconds.")),
		Handler: func(ctx context.Context, _ mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
			if err := refusalOfAny(ctx, resourceTools()[hostURI]); err != nil {
				return nil, err
			}
			report, err := checkReport(ctx, e)
			if err != nil {
				return nil, errors.New(errorText(err))
			}
			return jsonContents(hostURI, report)
		},
	}, {
		Resource: mcp.NewResource(manifestURI, "manifest", mcp.WithResourceTitle("A job's manifest"), mcp.WithMIMEType("application/schema+json"),
			mcp.WithResourceDescription("The schema of submit_job's manifest, with all there is to know about each field.")),
		Handler: func(ctx context.Context, _ mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
			if err := refusalOfAny(ctx, resourceTools()[manifestURI]); err != nil {
				return nil, err
			}
			return []mcp.ResourceContents{mcp.TextResourceContents{URI: manifestURI, MIMEType: "application/schema+json", Text: string(schemaOf[job.Manifest](whole))}}, nil
		},
	}}
	return slices.DeleteFunc(all, func(r server.ServerResource) bool { return !has.any(resourceTools()[r.Resource.URI]...) })
}

// jobResources lists what can be read of a job without a tool, if a tool that returns it exists.
func jobResources(e job.Engine, has having) []server.ServerResourceTemplate {
	reading := func(uri, name, title, description, mediaType string, read func(context.Context, string) ([]mcp.ResourceContents, error)) server.ServerResourceTemplate {
		return server.ServerResourceTemplate{
			Template: mcp.NewResourceTemplate(uri, name, mcp.WithTemplateTitle(title), mcp.WithTemplateDescription(description), mcp.WithTemplateMIMEType(mediaType)),
			Handler: func(ctx context.Context, req mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
				if err := refusalOfAny(ctx, resourceTools()[uri]); err != nil {
					return nil, err
				}
				contents, err := read(ctx, req.Params.URI)
				if err != nil {
					return nil, errors.New(errorText(err))
				}
				return contents, nil
			},
		}
	}
	template := func(uri, name, title, description, mediaType string, read func(context.Context, resource) ([]mcp.ResourceContents, error)) server.ServerResourceTemplate {
		return reading(uri, name, title, description, mediaType, func(ctx context.Context, of string) ([]mcp.ResourceContents, error) {
			r, err := parseResource(of)
			if err != nil {
				return nil, err
			}
			return read(ctx, r)
		})
	}
	var all []server.ServerResourceTemplate
	if has.any(resourceTools()[usageTemplate]...) {
		all = append(all, reading(usageTemplate, "usage", "What jobs and VMs have used",
			"VM hours, processors, memory, waits and failures of the last 30 days, by: principal, queue, repository, template, label=KEY, or all.",
			"application/json", func(ctx context.Context, uri string) ([]mcp.ResourceContents, error) { return readUsage(ctx, e, uri) }))
	}
	if has.any(resourceTools()[outputTemplate]...) {
		all = append(all, template(outputTemplate, "job-output", "A job's output",
			"The last 64 KiB of what a job has written to stdout, and to stderr (#stderr). Subscribe to be notified of more output, at most once a second, and of the end.",
			"text/plain", func(ctx context.Context, r resource) ([]mcp.ResourceContents, error) { return readOutput(ctx, e, r) }))
	}
	if has.any(resourceTools()[resultTemplate]...) {
		all = append(all, template(resultTemplate, "job-result", "A job's result",
			"A finished job's outcome, as get_job_result returns it.",
			"application/json", func(ctx context.Context, r resource) ([]mcp.ResourceContents, error) { return readResult(ctx, e, r) }),
			template(artifactTemplate, "job-artifact", "A job's artifact",
				"A file collected from a job, up to 8 MiB.",
				"", func(ctx context.Context, r resource) ([]mcp.ResourceContents, error) { return readArtifact(ctx, e, r) }))
	}
	return all
}

// resource is the parsed URI of a job's resource.
type resource struct {
	uri, job string
	what     string // output, result or artifacts
	path     string // of an artifact
}

func parseResource(uri string) (resource, error) {
	rest, ok := strings.CutPrefix(uri, resourcePrefix)
	parts := strings.SplitN(rest, "/", 3)
	if !ok || len(parts) < 2 || parts[0] == "" {
		return resource{}, fmt.Errorf("%q is not a resource of linus: they begin with %sJOB_ID/", uri, resourcePrefix)
	}
	r := resource{uri: uri, job: parts[0], what: parts[1]}
	if len(parts) == 3 {
		p, err := url.PathUnescape(parts[2])
		if err != nil {
			return resource{}, fmt.Errorf("%q: %w", uri, err)
		}
		r.path = p
	}
	return r, nil
}

func artifactURI(id, path string) string {
	return resourcePrefix + id + "/artifacts/" + job.EscapePath(path)
}

func readOutput(ctx context.Context, e job.Engine, r resource) ([]mcp.ResourceContents, error) {
	var contents []mcp.ResourceContents
	for i, stream := range streams {
		p, err := read(ctx, e, r.job, stream, -mostOutput, mostOutput, false)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			contents = append(contents, mcp.TextResourceContents{URI: r.uri, MIMEType: "text/plain", Text: p.text})
		} else if p.text != "" {
			contents = append(contents, mcp.TextResourceContents{URI: r.uri + "#" + stream, MIMEType: "text/plain", Text: p.text})
		}
	}
	return contents, nil
}

func readResult(ctx context.Context, e job.Engine, r resource) ([]mcp.ResourceContents, error) {
	j, err := e.Job(ctx, r.job)
	if err != nil {
		return nil, err
	}
	result, err := resultOf(ctx, e, j, defaultBytes)
	if err != nil {
		return nil, err
	}
	return jsonContents(r.uri, result)
}

func readUsage(ctx context.Context, e job.Engine, uri string) ([]mcp.ResourceContents, error) {
	by, err := url.PathUnescape(strings.TrimPrefix(uri, usagePrefix))
	if err != nil {
		return nil, fmt.Errorf("%q: %w", uri, err)
	}
	if by == "all" {
		by = ""
	}
	used, err := e.Usage(ctx, job.UsageQuery{By: by})
	if err != nil {
		return nil, err
	}
	return jsonContents(uri, map[string]any{"usage": used})
}

// jsonContents returns a value as JSON without HTML escapes: models read it.
func jsonContents(uri string, value any) ([]mcp.ResourceContents, error) {
	text, err := plainJSON(value)
	if err != nil {
		return nil, err
	}
	return []mcp.ResourceContents{mcp.TextResourceContents{URI: uri, MIMEType: "application/json", Text: text}}, nil
}

func readArtifact(ctx context.Context, e job.Engine, r resource) ([]mcp.ResourceContents, error) {
	file, about, err := e.OpenArtifact(ctx, r.job, r.path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // only read
	if about.Size > mostArtifact {
		return nil, &job.FieldError{
			Field: "path", Problem: fmt.Sprintf("%q has %d bytes, a resource may have at most %d", r.path, about.Size, mostArtifact),
			Remedy: "fetch it with linus job artifacts get, or by HTTP",
		}
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("read artifact %s: %w", r.path, err)
	}
	kind := mediaType(r.path)
	if utf8.Valid(data) && !bytes.ContainsRune(data, 0) {
		return []mcp.ResourceContents{mcp.TextResourceContents{URI: r.uri, MIMEType: kind, Text: string(data)}}, nil
	}
	return []mcp.ResourceContents{mcp.BlobResourceContents{URI: r.uri, MIMEType: kind, Blob: base64.StdEncoding.EncodeToString(data)}}, nil
}
