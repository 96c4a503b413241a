package job

import (
	"context"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of one file operation, in bytes.
const (
	MaxFileChunk = 4 << 20  // most that ReadFile returns
	MaxFileWrite = 10 << 20 // most that WriteFile writes, and largest file that EditFile edits
	MaxFileName  = 255      // of one part of a path, on any file system
)

// MaxFileList bounds the entries that ListFiles returns at once.
const MaxFileList = 1000

// Files are the operations on files in a running VM. VM is the VM's name, its VM ID, or the ID of a
// job that runs in it. Relative paths begin at the home of the VM's SSH user, with whose rights all
// operations run. Paths are bytes. Errors are *FieldError if the path or the VM is at fault.
type Files interface {
	// ListFiles returns a page of a directory's entries, by name; for anything else, the file itself.
	ListFiles(ctx context.Context, q FileList) (FilePage, error)
	// ReadFile returns a part of a regular file.
	ReadFile(ctx context.Context, r FileRange) (FileChunk, error)
	// WriteFile writes a whole regular file, or leaves it unchanged.
	WriteFile(ctx context.Context, w FileWrite) (FileWritten, error)
	// EditFile replaces text in a regular file, or leaves it unchanged.
	EditFile(ctx context.Context, e FileEdit) (FileEdited, error)
	// ReadTree returns a directory with everything below it, or a regular file, as a tar archive, which
	// the caller must close. Names are relative to the directory: the first is "./" for a directory,
	// and the only one "./NAME" for a file. Reading ends with an error unless the archive is complete.
	ReadTree(ctx context.Context, f FileRef) (io.ReadCloser, error)
	// WriteTree unpacks a tar archive into a directory.
	WriteTree(ctx context.Context, f FileRef, archive io.Reader) error
}

// FileRef is a file or a directory in a VM.
type FileRef struct {
	VM   string `json:"vm"`
	Path string `json:"path"`
}

// FileList is the query of ListFiles.
type FileList struct {
	VM     string `json:"vm"`
	Path   string `json:"path"`                // empty: the home of the VM's SSH user
	Offset int    `json:"offset" api:"cursor"` // entries to skip: Next of the previous page
	Limit  int    `json:"limit"`               // 1 to MaxFileList; 0: MaxFileList
}

// FilePage is a part of a directory.
type FilePage struct {
	Type    FileType   `json:"type"` // of the file at the path
	Entries []FileInfo `json:"entries" api:"items"`
	Total   int        `json:"total"`                                   // entries of the directory
	Next    int        `json:"next,omitempty" api:"next_cursor,string"` // the offset of the next page; 0: this is the last
}

// FileType is what a file is.
type FileType string

// The types.
const (
	FileRegular   FileType = "file"
	FileDirectory FileType = "directory"
	FileSymlink   FileType = "symlink"
	FileOther     FileType = "other" // a pipe, a socket or a device
)

// FileInfo is a file in a VM, as the VM describes it.
type FileInfo struct {
	Name    string    `json:"name"`                                     // without a directory; bytes that are not UTF-8 are replaced
	RawName []byte    `json:"raw_name,omitempty" api:"raw_name_base64"` // the name's bytes, if Name cannot hold them
	Type    FileType  `json:"type"`
	Size    int64     `json:"size" api:"size_bytes"` // bytes
	Mode    string    `json:"mode"`                  // octal permissions
	UID     uint32    `json:"uid"`
	GID     uint32    `json:"gid"`
	ModTime time.Time `json:"modified_at"`
}

// SetName sets the name from its bytes.
func (f *FileInfo) SetName(name string) {
	f.Name, f.RawName = name, nil
	if !utf8.ValidString(name) {
		f.Name, f.RawName = strings.ToValidUTF8(name, string(utf8.RuneError)), []byte(name)
	}
}

// Path returns the name's bytes.
func (f FileInfo) Path() string {
	if len(f.RawName) > 0 {
		return string(f.RawName)
	}
	return f.Name
}

// FileRange is a part of a file.
type FileRange struct {
	VM     string `json:"vm"`
	Path   string `json:"path" api:",required"`
	Offset int64  `json:"offset"` // bytes
	Limit  int64  `json:"limit"`  // bytes, 1 to MaxFileChunk; 0: MaxFileChunk
}

// FileChunk is what was read from a file.
type FileChunk struct {
	Data []byte `json:"data" api:"data,body"`
	Next int64  `json:"next" api:"next_offset"` // the offset after Data
	End  bool   `json:"end"`                    // the file ends at Next
	Size int64  `json:"size" api:"size_bytes"`  // of the whole file, as the VM reports it: 0 for files the kernel makes up
	Mode string `json:"mode"`                   // octal permissions
}

// FileWrite is a file's new content. An existing file keeps its owner, and its mode unless one is
// set; a symbolic link stays, and its target is written.
type FileWrite struct {
	VM      string `json:"vm"`
	Path    string `json:"path" api:",required"`
	Data    []byte `json:"data" api:"data,body"` // at most MaxFileWrite
	Mode    string `json:"mode,omitempty"`       // octal permissions of the file; default: unchanged, 0644 for a new file
	Parents bool   `json:"parents,omitempty"`    // create missing directories
	New     bool   `json:"new,omitempty"`        // do not overwrite an existing file: that is an error of "new"
}

// FileWritten is the result of writing a file.
type FileWritten struct {
	Created bool   `json:"created"` // there was no such file
	Size    int64  `json:"size" api:"size_bytes"`
	Mode    string `json:"mode"`
}

// FileEdit replaces text in a file of at most 10 MiB. The old text must occur exactly once, or at
// least once if all is set.
type FileEdit struct {
	VM   string `json:"vm"`
	Path string `json:"path" api:",required"`
	Old  string `json:"old" api:",required"`
	New  string `json:"new" api:",required"`
	All  bool   `json:"all,omitempty"`
}

// FileEdited is the result of editing a file.
type FileEdited struct {
	Replaced int   `json:"replaced"`              // occurrences
	Line     int   `json:"line"`                  // of the first one, from 1
	Size     int64 `json:"size" api:"size_bytes"` // of the file now
}
