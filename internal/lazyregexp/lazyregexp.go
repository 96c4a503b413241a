// Package lazyregexp has regular expressions that are compiled when they are first used:
// every start of linus would pay for those of all packages.
package lazyregexp

import (
	"regexp"
	"sync"
)

// Regexp is a regular expression. Its methods are those of regexp.Regexp.
type Regexp struct{ compiled func() *regexp.Regexp }

// New returns a regular expression. Its first use panics if the text cannot be parsed.
func New(text string) *Regexp {
	return &Regexp{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })}
}

// MatchString is regexp.Regexp.MatchString.
func (r *Regexp) MatchString(s string) bool { return r.compiled().MatchString(s) }

// FindStringSubmatch is regexp.Regexp.FindStringSubmatch.
func (r *Regexp) FindStringSubmatch(s string) []string { return r.compiled().FindStringSubmatch(s) }

// ReplaceAllString is regexp.Regexp.ReplaceAllString.
func (r *Regexp) ReplaceAllString(s, with string) string {
	return r.compiled().ReplaceAllString(s, with)
}

// ReplaceAllStringFunc is regexp.Regexp.ReplaceAllStringFunc.
func (r *Regexp) ReplaceAllStringFunc(s string, with func(string) string) string {
	return r.compiled().ReplaceAllStringFunc(s, with)
}
