package main

import (
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"

	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// endless is an input of some bytes, whose end comes when it is asked for.
type endless struct {
	text string
	end  chan struct{}
}

func (e *endless) Read(b []byte) (int, error) {
	if e.text == "" {
		<-e.end
		return 0, io.EOF
	}
	n := copy(b, e.text)
	e.text = e.text[n:]
	return n, nil
}

// watched is stderr, and what has come there.
type watched struct {
	mu   sync.Mutex
	text string
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text += string(b)
	return len(b), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text
}

// What reads a pipe that another program fills says how far it is, and leaves nothing behind.
func TestProgressOfImport(t *testing.T) {
	const source = "-A -t 192.0.2.10:80 -s rr\n-a -t 192.0.2.10:80 -r 10.0.0.1:80 -m -w 1\n"
	for _, shows := range []bool{true, false} {
		in, out, stderr := &endless{text: source, end: make(chan struct{})}, &watched{}, &watched{}
		p := &cli.Env{In: in, Out: out, Err: stderr, StderrTTY: shows, LookupEnv: func(string) (string, bool) { return "", false }}
		code := make(chan int)
		go func() { code <- run(t.Context(), p, []string{"import", "ipvs", "-"}) }()
		for shows && !strings.Contains(stderr.String(), "\rreading stdin: ") {
			runtime.Gosched()
		}
		close(in.end)
		if got := <-code; got != 0 || !strings.Contains(out.String(), "kind: Service") {
			t.Fatalf("exit code %d: %s", got, stderr)
		}
		if shows && !strings.HasSuffix(stderr.String(), "\r\x1b[K") || !shows && stderr.String() != "" {
			t.Errorf("watched %t: %q", shows, stderr)
		}
	}
}
