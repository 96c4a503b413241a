// Package embed turns the bash scripts of the repository into single files that
// can be uploaded, or run by hand, with nothing else of ours beside them. It is
// the only importer of package scripts, and knows nothing of what they do.
package embed

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"linus/internal/lazyregexp"
	"linus/scripts"
)

// File is one self-contained script.
type File struct {
	Name   string // as Names has it, e.g. "create-vm"
	Ext    string // of its file: .sh, or .pl, which sources nothing
	Body   []byte // the script with every library file it sources put in place
	SHA256 string // of Body, in hex: names the upload, so that versions never mix
}

// ErrUnknownScript is the answer to a name that Names does not have.
var ErrUnknownScript = errors.New("no such script")

// entryDirs hold the scripts that are run; what lies in lib is only sourced.
var entryDirs = []string{"proxmox", "guest"}

var extensions = []string{".sh", ".pl"}

var (
	// The form in which an entry point sources a library file, and the one in
	// which a library file sources another: that one starts no process, for by
	// hand a file is read once for every way that leads to it.
	entrySource   = lazyregexp.New(`^source "\$\(dirname -- "\$\{BASH_SOURCE\[0\]\}"\)/\.\./lib/([a-z0-9-]+\.sh)"$`)
	librarySource = lazyregexp.New(`^source "\$\{BASH_SOURCE\[0\]%/\*\}/([a-z0-9-]+\.sh)"$`)
	// What a library file has only for the tools that read it by itself.
	preamble   = lazyregexp.New(`(?m)^(#!|# shellcheck ).*\n`)
	sourceLike = lazyregexp.New(`^\s*(source|\.)\s`)
)

// Names lists all scripts by their file name without extension, in the order of
// their directories: the host's, then the guest's.
func Names() []string {
	var names []string
	for _, dir := range entryDirs {
		entries, err := fs.ReadDir(scripts.FS, dir)
		if err != nil {
			panic(err) // the tree is compiled in
		}
		for _, e := range entries {
			if ext := path.Ext(e.Name()); slices.Contains(extensions, ext) {
				names = append(names, strings.TrimSuffix(e.Name(), ext))
			}
		}
	}
	return names
}

// bundled are the scripts that were asked for, File by name: what is compiled in does
// not change, and putting one together takes milliseconds.
var bundled sync.Map

// Script returns one script, self-contained; its Body is shared and not to be changed.
// An unknown name is ErrUnknownScript; any other error is a fault in the script's source
// lines.
func Script(name string) (File, error) {
	if f, ok := bundled.Load(name); ok {
		return f.(File), nil
	}
	f, err := readScript(name)
	if err == nil {
		bundled.Store(name, f)
	}
	return f, err
}

func readScript(name string) (File, error) {
	for _, dir := range entryDirs {
		for _, ext := range extensions {
			body, err := fs.ReadFile(scripts.FS, dir+"/"+name+ext)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
				continue
			}
			if err != nil {
				return File{}, fmt.Errorf("read script %s: %w", name, err)
			}
			if ext == ".sh" {
				if body, err = bundle(scripts.FS, string(body)); err != nil {
					return File{}, fmt.Errorf("bundle %s: %w", name, err)
				}
			}
			sum := sha256.Sum256(body)
			return File{Name: name, Ext: ext, Body: body, SHA256: hex.EncodeToString(sum[:])}, nil
		}
	}
	return File{}, fmt.Errorf("%w: %q (there are: %s)", ErrUnknownScript, name, strings.Join(Names(), ", "))
}

// bundle puts each library file in place of the first line that sources it, and
// nothing in place of the later ones.
func bundle(fsys fs.FS, text string) ([]byte, error) {
	b := bundler{fsys: fsys, done: map[string]bool{}}
	if err := b.write(text, entrySource); err != nil {
		return nil, err
	}
	return []byte(b.out.String()), nil
}

type bundler struct {
	fsys fs.FS
	out  strings.Builder
	done map[string]bool // library files: false while one is being written, true after
}

// write writes a script whose source lines have the given form.
func (b *bundler) write(text string, source *lazyregexp.Regexp) error {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if m := source.FindStringSubmatch(line); m != nil {
			if err := b.inline("lib/" + m[1]); err != nil {
				return err
			}
			continue
		}
		if sourceLike.MatchString(line) {
			return fmt.Errorf("cannot inline %q", strings.TrimSpace(line))
		}
		b.out.WriteString(line + "\n")
	}
	return nil
}

// inline writes one library file and those it sources, unless they are there.
func (b *bundler) inline(name string) error {
	if done, begun := b.done[name]; done {
		return nil
	} else if begun {
		return fmt.Errorf("inline %s: it sources itself", name)
	}
	text, err := fs.ReadFile(b.fsys, name)
	if err != nil {
		return fmt.Errorf("inline %s: %w", name, err)
	}
	b.done[name] = false
	fmt.Fprintf(&b.out, "# %s\n", name)
	if err := b.write(preamble.ReplaceAllString(string(text), ""), librarySource); err != nil {
		return fmt.Errorf("inline %s: %w", name, err)
	}
	b.done[name] = true
	return nil
}
