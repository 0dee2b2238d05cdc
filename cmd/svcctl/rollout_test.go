package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
)

// The page of a rollout has its step and the state of each box. A stopped rollout is exit code 1.
func TestRolloutStatus(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	stopped := wire.Rollout{
		ID: "k3vq", Phase: wire.RolloutStopped, Pending: true, Began: at, Since: at.Add(time.Minute), User: "root", Steps: []string{"gw1", "100%"}, Why: "box gw1 fails",
		Objects: strings.Fields(strings.Repeat("Service/x ", 12)),
		Boxes:   []wire.RolloutBox{{Name: "gw1", New: true, State: wire.BoxOK, Programmed: true}, {Name: "gw2", State: wire.BoxAway}, {Name: "gw3", New: true, State: wire.BoxBehind}},
	}
	baking := wire.Rollout{ID: "k3vq", Phase: "Baking", Pending: true, Steps: []string{"gw1", "100%"}, Step: 1, Left: wire.Duration(90 * time.Second), BoxesUnknown: "cut off"}
	for _, test := range []struct {
		rollout wire.Rollout
		code    int
		lines   []string
	}{
		{stopped, cli.ExitNo, []string{
			"Rollout +k3vq, begun by root at 2026-05-01 12:00:00 UTC", "Phase +Stopped, since 2026-05-01 12:01:00 UTC", "Step +1 of 2 .gw1., of gw1, 100%", "Why +box gw1 fails",
			"What to do +.svcctl fleet rollout resume.*svcctl fleet rollout undo", "Objects +Service/x, .* and 2 more", "gw1 +new +OK +yes", "gw2 +before +Away +-", "gw3 +new +Behind +no",
		}},
		{baking, cli.ExitDone, []string{"Baking, since .*, 1m30s left", "Step +2 of 2", "Boxes +not known: cut off"}},
	} {
		b := newBench()
		code := b.run("fleet", "rollout", "status", "--socket", serveRollout(t, &test.rollout))
		if code != test.code {
			t.Errorf("%s: exit %d, want %d: %s", test.rollout.Phase, code, test.code, b.err.String())
		}
		for _, line := range test.lines {
			if !regexp.MustCompile(line).MatchString(b.out.String()) {
				t.Errorf("no line %q in:\n%s", line, b.out.String())
			}
		}
	}
}

// serveRollout serves the state of a rollout and returns its socket.
func serveRollout(t *testing.T, r *wire.Rollout) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc(wire.GetRollout.Path, func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(r) })
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket
}
