package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"linus/internal/control"
)

// console is a job's terminal, as the API has it.
type console struct {
	t     *testing.T
	ws    *websocket.Conn
	seen  string      // what was written, and not asked for yet
	came  chan string // what was not seen yet; closed when the connection has ended
	ended error       // why it has
}

func openConsole(t *testing.T, url, id string) *console {
	t.Helper()
	_, token, _ := strings.Cut(clientsToken, "=")
	ws, resp, err := websocket.Dial(t.Context(), url+"/api/v1/jobs/"+id+"/terminal", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		t.Fatalf("terminal: %v, %+v", err, resp)
	}
	t.Cleanup(func() { _ = ws.CloseNow() })
	ws.SetReadLimit(1 << 20)
	c := &console{t: t, ws: ws, came: make(chan string, 1000)}
	go c.read()
	return c
}

// read takes what comes, whether or not the test waits for it: else the server's pings
// would have no answer.
func (c *console) read() {
	defer close(c.came)
	for {
		kind, data, err := c.ws.Read(context.Background())
		if err != nil {
			c.ended = err
			return
		}
		if kind == websocket.MessageBinary {
			c.came <- string(data)
		}
	}
}

// send types.
func (c *console) send(text string) { c.message(websocket.MessageBinary, []byte(text)) }

func (c *console) message(kind websocket.MessageType, data []byte) {
	c.t.Helper()
	if err := c.ws.Write(c.t.Context(), kind, data); err != nil {
		c.t.Fatal(err)
	}
}

// until returns what is written up to a text.
func (c *console) until(text string) string {
	c.t.Helper()
	deadline := time.After(5 * time.Minute)
	for {
		if at := strings.Index(c.seen, text); at >= 0 {
			said := c.seen[:at+len(text)]
			c.seen = c.seen[len(said):]
			return said
		}
		select {
		case more, open := <-c.came:
			if !open {
				c.t.Fatalf("the terminal says %q, and not %q: %v", c.seen, text, c.ended)
			}
			c.seen += more
		case <-deadline:
			c.t.Fatalf("the terminal says %q, and not %q", c.seen, text)
		}
	}
}

// isOne checks that it has the size that it is given, and that Ctrl-C interrupts.
func (c *console) isOne(t *testing.T) {
	size, err := json.Marshal(control.TerminalRequest{Rows: 40, Columns: 100})
	if err != nil {
		t.Fatal(err)
	}
	c.message(websocket.MessageText, size)
	c.send("stty size; sleep 1000\n")
	c.until("40 100\r\n")
	c.send("\x03")
	c.until("^C")
	c.send("echo again $((40+2))\n")
	c.until("again 42")
}
