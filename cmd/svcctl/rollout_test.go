package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/wire"
)

func TestRolling(t *testing.T) {
	for text, want := range map[string]string{
		"":                                    "none",
		"rollout=gw1,25%":                     "gw1,25% 2m0s 1m0s",
		"rollout=gw1 bake=0s within=5s":       "gw1 0s 5s",
		"bake=1m":                             "give --rollout, too",
		"within=1m":                           "give --rollout, too",
		"rollout=gw1 confirm=5m":              "exclude each other",
		"rollout=50%,25%":                     "--rollout: the share 25%",
		"rollout=gw1 bake=-1s":                "--bake",
		"rollout=gw1 bake=long":               "--bake",
		"rollout=gw1 within=1ms":              "--within",
		"rollout=gw1 bake=1h within=tomorrow": "--within",
		"on-failure=undo":                     "give --rollout, too",
		"rollout=gw1 on-failure=revert":       `--on-failure "revert": want stop or undo`,
		"rollout=gw1 on-failure=undo":         "gw1 2m0s 1m0s undo",
	} {
		p := &program{}
		for _, v := range []*verb{p.applyVerb(), p.deleteVerb()} {
			for given := range strings.FieldsSeq(text) {
				name, value, _ := strings.Cut(given, "=")
				v.option(name).texts = []string{value}
			}
			r, err := p.rolling(v, nil)
			got := "none"
			switch {
			case err != nil:
				got = err.Error()
			case r != nil:
				got = r.steps + " " + r.bake.String() + " " + r.within.String()
				if r.onFailure != wire.OnFailureStop {
					got += " " + r.onFailure
				}
			}
			if err == nil && got != want || err != nil && !strings.Contains(got, want) {
				t.Errorf("%s %q: %q, want %q", v.name, text, got, want)
			}
		}
	}
}

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

func TestRolloutIsShown(t *testing.T) {
	s := &wire.Status{Rollout: &wire.Rollout{ID: "k3vq", Phase: wire.RolloutStopped, Steps: []string{"gw1", "100%"}, Here: true}}
	matches(t, statusPage(s, time.Time{}, false, false), "Rollout +k3vq: Stopped in step 1 of 2; this box has the new versions; see .svcctl fleet rollout status.")
	s.Rollout.Here = false
	matches(t, statusPage(s, time.Time{}, false, false), "this box has the versions before")
	boxes := []wire.FleetBox{{Name: "gw1", Rollout: "new"}, {Name: "gw2", Rollout: "before"}}
	matches(t, boxTable(boxes, boxLook{}), "SINCE +ROLLOUT")
	matches(t, boxTable(boxes, boxLook{}), "- +before")
	if boxes[0].Rollout, boxes[1].Rollout = "", ""; strings.Contains(boxTable(boxes, boxLook{}), "ROLLOUT") {
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
