package intake

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// LeftOut is the file in an archive that lists what Archive has left out.
const LeftOut = "LEFT-OUT.txt"

// mostListed bounds the entries in LeftOut.
const mostListed = 1000

// Archive copies a VM's tar archive without what must not be written on this machine. Nobody can be
// asked later, since other programs unpack the copy. Links are left out, too.
func Archive(to io.Writer, from io.Reader) error {
	w, out, count := tar.NewWriter(to), strings.Builder{}, 0
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		name := path.Clean(h.Name)
		var why error
		switch {
		case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir, len(h.PAXRecords) > 0 && strings.Contains(fmt.Sprint(h.PAXRecords), "GNU.sparse"):
			why = refuse("is neither a file nor a directory")
		case name != ".":
			why = Check(name, false)
		}
		if why != nil {
			if count++; count <= mostListed {
				fmt.Fprintf(&out, "%q %v\n", h.Name, why)
			}
			continue
		}
		kept := tar.Header{Typeflag: h.Typeflag, Name: name, Mode: h.Mode & 0o777, Size: h.Size, ModTime: h.ModTime}
		if h.Typeflag == tar.TypeDir {
			kept.Name += "/"
		}
		if err := w.WriteHeader(&kept); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil {
			return err
		}
	}
	if count > 0 {
		fmt.Fprintf(&out, "%d in all; linus vm cp --force brings what is run by itself, and links as they are\n", count)
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: LeftOut, Mode: 0o644, Size: int64(out.Len())}); err != nil {
			return err
		}
		if _, err := io.WriteString(w, out.String()); err != nil {
			return err
		}
	}
	return w.Close()
}
