package look

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/resource"
)

func TestRolloutIsShown(t *testing.T) {
	s := &wire.Status{Rollout: &wire.Rollout{ID: "k3vq", Phase: wire.RolloutStopped, Steps: []string{"gw1", "100%"}, Here: true}}
	matches(t, StatusPage(s, time.Time{}, false, false), "Rollout +k3vq: Stopped in step 1 of 2; this box has the new versions; see .svcctl fleet rollout status.")
	s.Rollout.Here = false
	matches(t, StatusPage(s, time.Time{}, false, false), "this box has the versions before")
	boxes := []wire.FleetBox{{Name: "gw1", Rollout: "new"}, {Name: "gw2", Rollout: "before"}}
	matches(t, resource.BoxText(boxes), "SINCE +ROLLOUT")
	matches(t, resource.BoxText(boxes), "- +before")
	if boxes[0].Rollout, boxes[1].Rollout = "", ""; strings.Contains(resource.BoxText(boxes), "ROLLOUT") {
		t.Error("boxes without a rollout have a column for it")
	}
}

// matches asserts that some line of a text is as a regular expression says.
func matches(t *testing.T, text, line string) {
	t.Helper()
	if !regexp.MustCompile(line).MatchString(text) {
		t.Errorf("no line %q in:\n%s", line, text)
	}
}
