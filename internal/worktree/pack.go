package worktree

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of a tree.
const (
	MaxFiles   = 50_000
	MaxBytes   = 512 << 20 // of all files
	MaxPacked  = 60 << 20  // of what is sent, compressed
	MaxIndex   = 16 << 20
	largestOne = 3 // how many files the error about a tree that is too large names
)

// Packed is what to send to a copy with an older state of the tree.
type Packed struct {
	Archive []byte // tar and gzip: the files that are new there or have changed
	Gone    []byte // names of files that are no longer in the tree, NUL-terminated
	Index   []byte // of the whole tree, for the next Pack
	Files   int    // of the whole tree
	Sent    int    // files in the archive
}

// Pack compares a tree with the index of a copy's state (nil: there is no copy) and packs what differs.
func (t Tree) Pack(ctx context.Context, held []byte) (Packed, error) {
	list, err := t.files(ctx)
	if err != nil {
		return Packed{}, err
	}
	if err := bounded(list); err != nil {
		return Packed{}, err
	}
	there := parseIndex(held)
	p := Packed{Files: len(list)}
	var archive, index, gone bytes.Buffer
	zip := gzip.NewWriter(&archive)
	w := tar.NewWriter(zip)
	for _, f := range list {
		if ctx.Err() != nil {
			return Packed{}, context.Cause(ctx)
		}
		h, data, err := t.read(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since it was listed
		}
		if err != nil {
			return Packed{}, err
		}
		entry := entryOf(h, data)
		fmt.Fprintf(&index, "%s %s\x00", entry, f.name)
		same := there[f.name] == entry
		delete(there, f.name)
		if same {
			continue
		}
		if err = w.WriteHeader(h); err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			return Packed{}, fmt.Errorf("pack %s: %w", f.name, err)
		}
		p.Sent++
		if archive.Len() > MaxPacked {
			return Packed{}, tooLarge(list, fmt.Sprintf("has more than %d MB even compressed", MaxPacked>>20))
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		return Packed{}, err
	}
	if archive.Len() > MaxPacked {
		return Packed{}, tooLarge(list, fmt.Sprintf("has more than %d MB even compressed", MaxPacked>>20))
	}
	for name := range there {
		gone.WriteString(name + "\x00")
	}
	p.Archive, p.Gone, p.Index = archive.Bytes(), gone.Bytes(), index.Bytes()
	return p, nil
}

// bounded refuses a tree that is too large before it is read.
func bounded(list []file) error {
	var all int64
	for _, f := range list {
		all += f.info.Size()
	}
	switch {
	case len(list) > MaxFiles:
		return tooLarge(list, fmt.Sprintf("has %d files, more than %d", len(list), MaxFiles))
	case all > MaxBytes:
		return tooLarge(list, fmt.Sprintf("has %d MB, more than %d", all>>20, MaxBytes>>20))
	}
	return nil
}

// tooLarge returns an error that names the largest files of a tree that is too large.
func tooLarge(list []file, why string) error {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b file) int { return int(min(max(b.info.Size()-a.info.Size(), -1), 1)) })
	var largest []string
	for _, f := range list[:min(len(list), largestOne)] {
		largest = append(largest, fmt.Sprintf("%s (%.1f MB)", f.name, float64(f.info.Size())/(1<<20)))
	}
	return fmt.Errorf("the tree %s; its largest files: %s. Let git ignore what is not needed there", why, strings.Join(largest, ", "))
}

// read returns a file's header and content.
func (t Tree) read(f file) (*tar.Header, []byte, error) {
	at := filepath.Join(t.Root, filepath.FromSlash(f.name))
	h := &tar.Header{Name: f.name, Mode: int64(f.info.Mode().Perm()), ModTime: f.info.ModTime(), Format: tar.FormatPAX}
	if f.info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(at)
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, filepath.ToSlash(target), 0o777
		return h, nil, err
	}
	data, err := os.ReadFile(at)
	h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
	return h, data, err
}

// entryOf returns a file's entry in an index, without its name.
func entryOf(h *tar.Header, data []byte) string {
	return fmt.Sprintf("%c%o:%s", h.Typeflag, h.Mode, sum([]byte(h.Linkname), data))
}

// sum returns the sha256 of a content, in hex.
func sum(parts ...[]byte) string {
	hash := sha256.Sum256(slices.Concat(parts...))
	return hex.EncodeToString(hash[:])
}

// parseIndex returns the entries of an index by name. The index comes from a VM: invalid entries are
// skipped, and a wrong index makes only that VM's own tree wrong.
func parseIndex(index []byte) map[string]string {
	there := map[string]string{}
	for line := range strings.SplitSeq(string(index), "\x00") {
		if entry, name, ok := strings.Cut(line, " "); ok && filepath.IsLocal(filepath.FromSlash(name)) {
			there[name] = entry
		}
	}
	return there
}
