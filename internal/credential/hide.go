package credential

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// hider replaces values by stars, because a host may send them back.
type hider [][]byte

// hiderOf returns a hider for values, as they are and quoted.
func hiderOf(values ...string) (h hider) {
	for _, value := range values {
		quoted := strconv.Quote(value)
		h = append(h, []byte(value), []byte(quoted[1:len(quoted)-1]))
	}
	return h
}

func (h hider) bytes(b []byte) {
	for _, value := range h {
		for at := 0; ; {
			i := bytes.Index(b[at:], value)
			if i < 0 {
				break
			}
			for j := range value {
				b[at+i+j] = '*'
			}
			at += i + len(value)
		}
	}
}

func (h hider) header(header http.Header) {
	header.Del("Set-Cookie") // a session would outlive the credential
	header.Del("Alt-Svc")    // it would lead past this proxy
	for name, values := range header {
		for i, v := range values {
			b := []byte(v)
			h.bytes(b)
			values[i] = string(b)
		}
		if starred := h.name(name); starred != name {
			delete(header, name)
			header[starred] = append(header[starred], values...)
		}
	}
}

// name returns a header's name without values, in any case: HTTP may have changed that.
func (h hider) name(name string) string {
	for _, value := range h {
		for {
			i := strings.Index(strings.ToLower(name), strings.ToLower(string(value)))
			if i < 0 {
				break
			}
			name = name[:i] + strings.Repeat("*", len(value)) + name[i+len(value):]
		}
	}
	return name
}

// open returns how many of the last bytes may be the beginning of a value.
func (h hider) open(b []byte) int {
	most := 0
	for _, value := range h {
		for n := min(len(value)-1, len(b)); n > most; n-- {
			if bytes.HasSuffix(b, value[:n]) {
				most = n
				break
			}
		}
	}
	return most
}

// hiding is a body without the values, of the same length. It only withholds what may be the
// beginning of a value until more is read.
type hiding struct {
	io.ReadCloser
	hide    hider
	trailer func()
	held    []byte // read; the first ready bytes are searched
	ready   int
	err     error
}

func (h *hiding) Read(to []byte) (int, error) {
	if len(to) == 0 {
		return 0, nil
	}
	for h.ready == 0 && h.err == nil {
		chunk := make([]byte, 32<<10)
		n, err := h.ReadCloser.Read(chunk)
		h.held, h.err = append(h.held, chunk[:n]...), err
		h.hide.bytes(h.held)
		h.ready = len(h.held)
		if err == nil {
			h.ready -= h.hide.open(h.held)
		} else {
			h.trailer()
		}
	}
	n := copy(to, h.held[:h.ready])
	h.held, h.ready = h.held[n:], h.ready-n
	if h.ready == 0 && h.err != nil {
		return n, h.err
	}
	return n, nil
}
