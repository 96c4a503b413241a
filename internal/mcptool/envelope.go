package mcptool

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/mark3labs/mcp-go/mcp"

	"linus/internal/job"
	"linus/internal/mcptask"
)

// numbers carries JSON-RPC IDs and progress tokens past mcp-go, which (v1.2.1) reads them as
// float64: two numbers above 2^53 become one, and a caller gets the other's answer. A number that
// would come back changed is replaced by a string that no client and no VM can guess.
type numbers struct {
	mark   []byte
	hidden *regexp.Regexp
}

func newNumbers() numbers {
	mark := "number-" + rand.Text() + ":"
	return numbers{[]byte(mark), regexp.MustCompile(`"` + mark + `([-+.0-9eE]+)"`)}
}

// hide replaces such numbers in a client's message.
func (n numbers) hide(message []byte) []byte {
	if onlyShortNumbers(message) {
		return message
	}
	var m struct {
		Method string
		ID     json.RawMessage
		Params struct {
			RequestID json.RawMessage
			Meta      struct{ ProgressToken json.RawMessage } `json:"_meta"`
		}
	}
	_ = json.Unmarshal(message, &m) // continues after a wrong type
	if m.Method == "" {
		return message
	}
	for _, at := range []struct {
		number json.RawMessage
		path   []string
	}{
		{m.ID, []string{"id"}},
		{m.Params.RequestID, []string{"params", "requestId"}},
		{m.Params.Meta.ProgressToken, []string{"params", "_meta", "progressToken"}},
	} {
		if inexact(at.number) {
			message = n.replace(message, at.path)
		}
	}
	return message
}

// onlyShortNumbers reports whether float64 represents all numbers in JSON exactly, because they are
// whole and short. Nearly all messages are like that, and then need no decoding.
func onlyShortNumbers(message []byte) bool {
	inText, digits := false, 0
	for i := 0; i < len(message); i++ {
		switch c := message[i]; {
		case inText && c == '\\':
			i++
		case c == '"':
			inText = !inText
		case inText:
		case c >= '0' && c <= '9':
			digits++
		case digits > 15 || c == '-' || digits > 0 && (c == '.' || c == 'e' || c == 'E'):
			return false
		default:
			digits = 0
		}
	}
	return digits <= 15
}

// replace returns an object in which the number at a path is a string.
func (n numbers) replace(object json.RawMessage, path []string) json.RawMessage {
	if len(path) == 0 {
		return fmt.Appendf(nil, `"%s%s"`, n.mark, object)
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil || members[path[0]] == nil {
		return object
	}
	members[path[0]] = n.replace(members[path[0]], path[1:])
	replaced, err := json.Marshal(members)
	if err != nil {
		return object
	}
	if bytes.HasSuffix(object, []byte("\n")) {
		replaced = append(replaced, '\n')
	}
	return replaced
}

// inexact reports whether a JSON value is a number that changes when it passes through float64.
func inexact(value json.RawMessage) bool {
	if len(value) == 0 || value[0] != '-' && (value[0] < '0' || value[0] > '9') {
		return false
	}
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil {
		return true
	}
	again, err := json.Marshal(f)
	return err != nil || !bytes.Equal(again, value)
}

// restore returns a message to a client with the original numbers of its requests.
func (n numbers) restore(message []byte) []byte {
	if !bytes.Contains(message, n.mark) {
		return message
	}
	return n.hidden.ReplaceAll(message, []byte("$1"))
}

// byteOrderMark precedes the first message of some programs.
var byteOrderMark = []byte("\ufeff") //nolint:gochecknoglobals // a constant

// mostBatched is the maximum number of messages in a batch.
const mostBatched = 100

// batchesOf reports whether a version of the protocol has batches.
func batchesOf(version string) bool { return version == mcp.ProtocolVersion20250326 }

// inBatch returns the messages of a batch, or what is wrong with it. It returns nil for a single
// message, and for text that is not JSON.
func inBatch(text []byte, version string) ([]json.RawMessage, error) {
	var all []json.RawMessage
	if text = bytes.TrimSpace(text); len(text) == 0 || text[0] != '[' || json.Unmarshal(text, &all) != nil {
		return nil, nil
	}
	switch {
	case !batchesOf(version):
		return nil, fmt.Errorf("invalid request: only version %s has batches; send one message at a time", mcp.ProtocolVersion20250326)
	case len(all) == 0 || len(all) > mostBatched:
		return nil, fmt.Errorf("invalid request: a batch has 1 to %d messages, this one %d", mostBatched, len(all))
	}
	for _, one := range all {
		if one[0] != '{' {
			return nil, errors.New("invalid request: a batch has objects only")
		}
	}
	return all, nil
}

// refused is the answer to an invalid message.
func refused(err error) mcp.JSONRPCError {
	return mcp.NewJSONRPCError(mcp.NewRequestId(nil), mcp.INVALID_REQUEST, err.Error(), nil)
}

// batch serves the messages of a request concurrently, and answers with all of their answers.
func (h *HTTP) batch(w http.ResponseWriter, r *http.Request, messages []json.RawMessage) {
	answers := make([][]json.RawMessage, len(messages))
	var work sync.WaitGroup
	for i, message := range messages {
		work.Go(func() {
			one := r.Clone(r.Context())
			one.Body, one.ContentLength = io.NopCloser(bytes.NewReader(message)), int64(len(message))
			to := &collected{unheard: unheard{http.Header{}}}
			h.one(to, one)
			answers[i] = to.answers(message)
		})
	}
	work.Wait()
	all := []json.RawMessage{}
	for _, some := range answers {
		all = append(all, some...)
	}
	if len(all) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	data, _ := json.Marshal(all)
	_, _ = w.Write(data) // fails if the client has gone
}

// collected is a response of mcp-go that is kept in memory: a message or events.
type collected struct {
	unheard

	body []byte
}

func (h *collected) Write(data []byte) (int, error) {
	h.body = append(h.body, data...)
	return len(data), nil
}

// answers returns the answer to a message, without other messages that were sent meanwhile.
func (h *collected) answers(message []byte) (all []json.RawMessage) {
	for line := range bytes.Lines(h.body) {
		line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("data: ")))
		if envelopeOf(line).isResponse() {
			all = append(all, line)
		}
	}
	if len(all) == 0 && envelopeOf(message).isRequest() {
		var m struct{ ID json.RawMessage }
		_ = json.Unmarshal(message, &m) // it is a request
		data, err := json.Marshal(mcp.NewJSONRPCError(mcp.NewRequestId(m.ID), mcp.INVALID_REQUEST, strings.TrimSpace(string(h.body)), nil))
		if err == nil {
			all = append(all, data)
		}
	}
	return all
}

// enveloped serves a request or a batch, with numbers that mcp-go would change replaced.
func (h *HTTP) enveloped(w http.ResponseWriter, r *http.Request) {
	w = mcptask.Changed(w, h.numbers.restore)
	if r.Method != http.MethodPost {
		h.one(w, r)
		return
	}
	body, err := io.ReadAll(r.Body) // mcp-go meets the same error, and answers it
	if err == nil {
		body = bytes.TrimPrefix(body, byteOrderMark)
		version := r.Header.Get(mcp.HeaderProtocolVersion)
		if version == "" { // as the protocol says
			version = mcp.ProtocolVersion20250326
		}
		messages, wrong := inBatch(body, version)
		switch {
		case wrong != nil:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(refused(wrong)) // fails if the client has gone
			return
		case messages != nil:
			for i, one := range messages {
				if h.refuse(w, r, one) {
					return
				}
				messages[i] = h.numbers.hide(one)
			}
			h.batch(w, r, messages)
			return
		}
		body = h.numbers.hide(body)
		r.ContentLength = int64(len(body))
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	if !h.refuse(w, r, body) {
		h.one(w, r)
	}
}

// decodeCall reads a call's arguments, which a client's model may have written as a string.
func decodeCall(arguments, in any) (tree any, err error) {
	raw, err := json.Marshal(arguments)
	if err != nil {
		return nil, err
	}
	var text string
	if bytes.HasPrefix(raw, []byte(`"`)) {
		_ = json.Unmarshal(raw, &text) // it is a string
	}
	if strings.HasPrefix(strings.TrimSpace(text), "{") || string(raw) == "null" {
		raw = []byte(cmp.Or(text, "{}"))
	}
	if of, ok := in.(interface{ whole(raw []byte) []byte }); ok {
		raw = of.whole(raw)
	}
	name := ""
	if !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		name = "arguments"
	}
	return job.DecodeCall(name, raw, in)
}
