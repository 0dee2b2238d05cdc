package main

import (
	"context"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// ending ends a context when something is written to it.
type ending struct {
	text string
	end  context.CancelFunc
}

func (e *ending) Write(text []byte) (int, error) {
	e.text += string(text)
	e.end()
	return len(text), nil
}

// Test877_dashboard_without_IPv4: a box whose loopback has no IPv4 address opens the dashboard on ::1.
func Test877_dashboard_without_IPv4(t *testing.T) {
	h := netlab.New(t).Host("box")
	b := newBox(t)
	for _, want := range []string{"Open http://127.0.0.1:", "Open http://[::1]:"} {
		ctx, cancel := context.WithCancel(t.Context())
		out, code := &ending{end: cancel}, 0
		b.Out = out
		b.err.Reset()
		if err := h.Do(func() error {
			code = run(ctx, b.Env, []string{"dashboard", "--port", "0", "--no-browser"})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		cancel()
		if code != cli.ExitDone || !strings.HasPrefix(out.text, want) {
			t.Errorf("exit %d, %q, %q, want %q", code, out.text, b.err.String(), want)
		}
		if strings.Contains(want, "127") {
			h.RemoveAddr("lo", "127.0.0.1/8")
		}
	}
}
