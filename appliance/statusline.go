package appliance

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"svcctl.io/svcctl/api/wire"
)

// statusInterval is the least time between two status lines.
const statusInterval = time.Second

// showStatus keeps the line of `systemctl status` up to date, if systemd started us: it sends each new
// line, once a second at most.
func (a *assembly) showStatus(ctx context.Context) error {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	last := ""
	for {
		changed := a.board.Changed()
		if line := statusLine(a.board.Status()); line != last {
			a.notifySoon("STATUS=" + line)
			last = line
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(statusInterval):
		}
	}
}

// statusLine is a status in a line: "10,000 Services, 50,000 endpoints, all in the kernel; 2 problems, 1 of them an error".
func statusLine(s wire.Status) string {
	line := wire.Count(s.Counts.Services, "Service") + ", " + wire.Count(s.Counts.Endpoints, "endpoint")
	switch {
	case s.Synced:
		line += ", all in the kernel"
	case s.Reason != "":
		line += ", not all in the kernel: " + strings.Join(strings.Fields(s.Reason), " ")
	default:
		line += ", a change is being applied"
	}
	if s.RulesAway {
		line += "; another program has changed the rules"
	}
	if s.HeldRemovals > 0 {
		line += "; " + wire.Count(s.HeldRemovals, "Service") + " vanished and held, see svcctl confirm --removals"
	}
	switch errs := s.Errors(); {
	case len(s.Problems) == 0:
		line += "; no problems"
	case errs == 0:
		line += "; " + wire.Count(len(s.Problems), "warning") + ", see svcctl status"
	default:
		line += fmt.Sprintf("; %s, %s, see svcctl status", wire.Count(errs, "error"), wire.Count(len(s.Problems)-errs, "warning"))
	}
	return line
}
