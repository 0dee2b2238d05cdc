package fleet

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
)

func TestRolloutPage(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	r := &wire.Rollout{
		ID: "k3vq", Phase: wire.RolloutStopped, Pending: true, Began: at, Since: at.Add(time.Minute), User: "root", Steps: []string{"gw1", "100%"}, Why: "box gw1 fails",
		Objects: strings.Fields(strings.Repeat("Service/x ", 12)),
		Boxes:   []wire.RolloutBox{{Name: "gw1", New: true, State: wire.BoxOK, Programmed: true}, {Name: "gw2", State: wire.BoxAway}, {Name: "gw3", New: true, State: wire.BoxBehind}},
	}
	page := rolloutPage(r)
	for _, line := range []string{
		"Rollout +k3vq, begun by root at 2026-05-01 12:00:00 UTC", "Phase +Stopped, since 2026-05-01 12:01:00 UTC", "Step +1 of 2 .gw1., of gw1, 100%", "Why +box gw1 fails",
		"What to do +.svcctl fleet rollout resume.*svcctl fleet rollout undo", "Objects +Service/x, .* and 2 more", "gw1 +new +OK +yes", "gw2 +before +Away +-", "gw3 +new +Behind +no",
	} {
		matches(t, page, line)
	}
	r = &wire.Rollout{ID: "k3vq", Phase: "Baking", Pending: true, Steps: []string{"gw1", "100%"}, Step: 1, Left: wire.Duration(90 * time.Second), BoxesUnknown: "cut off"}
	for _, line := range []string{"Baking, since .*, 1m30s left", "Step +2 of 2", "Boxes +not known: cut off"} {
		matches(t, rolloutPage(r), line)
	}
}

// matches asserts that some line of a text is as a regular expression says.
func matches(t *testing.T, text, line string) {
	t.Helper()
	if !regexp.MustCompile(line).MatchString(text) {
		t.Errorf("no line %q in:\n%s", line, text)
	}
}
