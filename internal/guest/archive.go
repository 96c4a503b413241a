package guest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
)

type entry struct {
	name string // relative path
	mode uint64 // permissions
	size int64
	data io.Reader
}

func file(name string, mode uint64, data []byte) entry {
	return entry{name, mode, int64(len(data)), bytes.NewReader(data)}
}

// archive is a tar archive that is built while it is read, once, so that its contents are not in
// memory twice.
type archive struct {
	io.Reader
	size int64
}

func newArchive(entries ...entry) (archive, error) {
	const block = 512
	var parts []io.Reader
	var size int64
	for _, e := range entries {
		var head bytes.Buffer
		err := tar.NewWriter(&head).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: int64(e.mode), Size: e.size}) //nolint:gosec // permission bits
		if err != nil {
			return archive{}, fmt.Errorf("pack %s: %w", e.name, err)
		}
		padding := -e.size & (block - 1)
		size += int64(head.Len()) + e.size + padding
		parts = append(parts, &head, e.data, bytes.NewReader(make([]byte, padding)))
	}
	parts = append(parts, bytes.NewReader(make([]byte, 2*block))) // the end of the archive
	return archive{io.MultiReader(parts...), size + 2*block}, nil
}
