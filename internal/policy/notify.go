package policy

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"linus/internal/job"
)

// notify checks whom a job may notify: a client's job the hosts of ALLOWED_WEBHOOKS, the operator's
// job anybody.
func (b *Bounds) notify(found *findings, s job.Submission) {
	const name = "manifest.notify.url"
	n := s.Manifest.Notify
	switch {
	case n == nil:
	case !b.own.Signs:
		found.add(name, "cannot be notified: WEBHOOK_SECRET, which signs messages, is not set", "leave it out, or have the operator set it")
	case operators(s.Client, s.Principal.Name) || b.lists(n.URL, func(host, listed string) bool { return job.Among([]string{listed}, host) }):
	case len(b.webhooks) == 0:
		found.add(name, "is not allowed: only the operator's jobs notify, as ALLOWED_WEBHOOKS is not set", "leave it out")
	default:
		found.add(name, fmt.Sprintf("%q is not allowed: ALLOWED_WEBHOOKS allows %s", net.JoinHostPort(hostOf(n.URL)), strings.Join(b.webhooks, ", ")), "use one of these, or leave it out")
	}
}

// NotifyPrivate reports whether the URL that a job notifies may be at a private address: the
// operator's may, and so may a host that ALLOWED_WEBHOOKS names without wildcards.
func (b *Bounds) NotifyPrivate(j job.Job) bool {
	n := j.Manifest.Notify
	return n != nil && (operators(j.Client, j.Principal) || b.lists(n.URL, func(host, listed string) bool { return host == listed }))
}

// lists reports whether ALLOWED_WEBHOOKS has a URL's port, and its host as compared by same. A host
// listed without a port stands for all of its ports.
func (b *Bounds) lists(url string, same func(host, listed string) bool) bool {
	host, port := hostOf(url)
	return slices.ContainsFunc(b.webhooks, func(listed string) bool {
		if h, p, err := net.SplitHostPort(listed); err == nil {
			return same(host, h) && port == p
		}
		return same(host, listed)
	})
}

// operators reports whether a job was submitted by the operator, and not by an agent on the
// operator's behalf.
func operators(client, principal string) bool {
	return (principal == "" || principal == job.OperatorName) && !job.IsMCP(client)
}

// hostOf returns a URL's host in lower case, and its port.
func hostOf(text string) (host, port string) {
	u, err := url.Parse(text)
	if err != nil {
		return "", ""
	}
	port = u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), port
}
