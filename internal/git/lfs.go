package git

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/term"
)

const (
	atOnce    = 100    // large files in one request to a server
	blobs     = 10_000 // in one call of git
	lfsType   = "application/vnd.git-lfs+json"
	redirects = 5
)

// largeFile is a pointer that git stores in place of a large file.
type largeFile struct {
	OID  string `json:"oid"` // SHA-256
	Size int64  `json:"size"`
	name string // one of its paths
}

// path returns where git-lfs looks for the file in a repository.
func (f largeFile) path(at string) string {
	return filepath.Join(at, "lfs", "objects", f.OID[:2], f.OID[2:4], f.OID)
}

// largeFiles fetches the large files of a commit from the repository's own server, or from where that
// server says. git-lfs is not trusted to do this: it would follow a server to services on this machine,
// bypassing the transport.
func (g *Git) largeFiles(ctx context.Context, at string, w *opened, q job.RepositoryCall, commit string) error {
	files, err := g.pointers(ctx, at, "--no-walk", commit)
	if err != nil || len(files) == 0 {
		return err
	}
	size, err := sizeOf(at)
	for _, f := range files {
		size += f.Size
	}
	if err != nil || size > g.o.MaxBytes {
		return errors.Join(err, fmt.Errorf("with its large files it is %d bytes, the limit is %d", size, g.o.MaxBytes))
	}
	client, err := w.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	for some := range slices.Chunk(files, atOnce) {
		if err := fetchLarge(ctx, client, at, q.Repository.LFSURL(), some); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			} else if why := w.refusal(); why != "" {
				err = errors.New(why)
			}
			return fmt.Errorf("its large files: %w", err)
		}
	}
	return nil
}

var pointer = lazyregexp.New(`\A([0-9a-f]{40}) blob [0-9]+\nversion https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize ([0-9]{1,12})\n\n`)

// pointers returns the large files among the objects that rev-list lists.
func (g *Git) pointers(ctx context.Context, at string, revisions ...string) ([]largeFile, error) {
	listed, err := g.git(ctx, at, nil, nil, append([]string{"rev-list", "--objects", "--filter=object:type=blob", "--filter=blob:limit=200"}, revisions...)...)
	if err != nil {
		return nil, err
	}
	found := map[string]largeFile{}
	for some := range slices.Chunk(strings.Split(listed, "\n"), blobs) {
		var ids strings.Builder
		names := map[string]string{}
		for _, line := range some {
			if id, name, named := strings.Cut(line, " "); named {
				ids.WriteString(id + "\n")
				names[id] = name
			}
		}
		out, err := g.objects(ctx, at, ids.String(), "--batch")
		if err != nil {
			return nil, err
		}
		for out != "" {
			if part := pointer.FindStringSubmatch(out); part != nil {
				size, _ := strconv.ParseInt(part[3], 10, 64)
				found[part[2]] = largeFile{part[2], size, names[part[1]]}
			}
			head, rest, _ := strings.Cut(out, "\n")
			n, err := strconv.Atoi(head[strings.LastIndexByte(head, ' ')+1:])
			if err != nil || n < 0 || n >= len(rest) {
				return nil, fmt.Errorf("git cat-file says %.100q", head)
			}
			out = rest[n+1:]
		}
	}
	return slices.Collect(maps.Values(found)), nil
}

// objects returns objects in the output format of git cat-file.
func (g *Git) objects(ctx context.Context, at, ids, how string) (string, error) {
	name := filepath.Join(filepath.Dir(at), "asked")
	if err := writeFile(name, strings.NewReader(ids)); err != nil {
		return "", err
	}
	defer os.Remove(name) //nolint:errcheck // it goes with the directory
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read
	return g.git(ctx, at, nil, f, "cat-file", how)
}

// hasLargeFiles checks that the large files of new commits are known here. Those that a task adds stay in
// its VM, and a branch that refers to them would be useless.
func (g *Git) hasLargeFiles(ctx context.Context, at, base, head string) error {
	files, err := g.pointers(ctx, at, head, "--not", base)
	for _, f := range files {
		if _, err := os.Stat(f.path(at)); err != nil {
			return fmt.Errorf("the task has made %.200q, a large file, and these are not taken from its VM: keep it as an artifact, and push what is in the bundle from elsewhere", f.name)
		}
	}
	return err
}

// client returns an HTTP client that uses the transport.
func (o *opened) client() (*http.Client, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	roots.AppendCertsFromPEM(o.CA)
	return &http.Client{
		Transport: &http.Transport{
			Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: "the-way"}),
			DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Dial(ctx) },
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: 15 * time.Second, ResponseHeaderTimeout: 2 * time.Minute, MaxResponseHeaderBytes: 64 << 10, DisableCompression: true,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Scheme != "https" || len(via) > redirects || r.Method != http.MethodGet {
				return errors.New("it redirects elsewhere without HTTPS, or too often")
			}
			return nil
		},
	}, nil
}

// answer makes a request, and returns the body of the answer if its status is OK.
func answer(client *http.Client, r *http.Request) (io.ReadCloser, error) {
	if r.URL.Scheme != "https" || r.URL.User != nil {
		return nil, fmt.Errorf("%.200q is not an address to fetch them from", r.URL.Redacted())
	}
	res, err := client.Do(r) //nolint:bodyclose // by the caller
	if err != nil || res.StatusCode == http.StatusOK {
		if err != nil {
			return nil, err
		}
		return res.Body, nil
	}
	defer res.Body.Close() //nolint:errcheck // only read
	text, _ := io.ReadAll(io.LimitReader(res.Body, 300))
	return nil, fmt.Errorf("%s answers %s: %s", r.URL.Host, res.Status, strings.Join(strings.Fields(term.Text(string(text))), " "))
}

// offer is a server's answer about a large file.
type offer struct {
	OID     string `json:"oid"`
	Actions struct {
		Download struct {
			Href   string            `json:"href"`
			Header map[string]string `json:"header"`
		} `json:"download"`
	} `json:"actions"`
	Error struct {
		Message string `json:"message"`
	} `json:"error"`
}

// fetchLarge asks the server for the locations of large files, and fetches them.
func fetchLarge(ctx context.Context, client *http.Client, at, from string, files []largeFile) error {
	asked, err := json.Marshal(map[string]any{"operation": "download", "transfers": []string{"basic"}, "hash_algo": "sha256", "objects": files})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, from+"/objects/batch", bytes.NewReader(asked))
	if err != nil {
		return err
	}
	r.Header.Set("Accept", lfsType)
	r.Header.Set("Content-Type", lfsType)
	body, err := answer(client, r)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // only read
	var said struct {
		Objects []offer `json:"objects"`
	}
	if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(&said); err != nil {
		return fmt.Errorf("%s does not answer like a Git LFS server: %w", r.URL.Host, err)
	}
	offers := map[string]offer{}
	for _, o := range said.Objects {
		offers[o.OID] = o
	}
	for _, f := range files {
		if err := f.fetch(ctx, client, at, offers[f.OID]); err != nil {
			return fmt.Errorf("%.200q: %w", f.name, err)
		}
	}
	return nil
}

// fetch fetches a large file, and checks its size and hash.
func (f largeFile) fetch(ctx context.Context, client *http.Client, at string, o offer) (err error) {
	from := o.Actions.Download
	if from.Href == "" {
		return fmt.Errorf("the server does not have it: %.200s", term.Text(cmp.Or(o.Error.Message, "it says nothing of it")))
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, from.Href, http.NoBody)
	if err != nil {
		return fmt.Errorf("%.200q is not a URL", from.Href)
	}
	for name, value := range from.Header {
		r.Header.Set(name, value)
	}
	body, err := answer(client, r)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // only read
	name := f.path(at)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	sum := sha256.New()
	if err := writeFile(name, io.TeeReader(io.LimitReader(body, f.Size+1), sum)); err != nil {
		return err
	}
	if info, err := os.Stat(name); err != nil || info.Size() != f.Size || hex.EncodeToString(sum.Sum(nil)) != f.OID {
		return errors.Join(err, fmt.Errorf("%s has something else in its place", r.URL.Host))
	}
	return nil
}
