package change

import (
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
)

func TestBehindOf(t *testing.T) {
	box := func(name, state string, programmed uint64) wire.FleetBox {
		return wire.FleetBox{Name: name, State: state, Programmed: programmed}
	}
	has, behind, away := box("a", wire.BoxOK, 10), box("b", wire.BoxBehind, 9), box("c", wire.BoxAway, 9)
	back := box("d", wire.BoxAway, 10)         // it has the revision, whatever became of it
	locked := box("e", wire.BoxKeyMissing, 10) // the revision may be that of a Secret
	for _, test := range []struct {
		of      string
		boxes   []wire.FleetBox
		done    bool
		missing string
	}{
		{"", []wire.FleetBox{has, back}, true, ""},
		{"", []wire.FleetBox{has, away}, true, "c"},
		{"", []wire.FleetBox{has, behind, away}, false, "b (Behind, at revision 9), c (not reporting)"},
		{waitPresent, []wire.FleetBox{has, behind}, false, "b (Behind"},
		{"", []wire.FleetBox{has, locked}, false, "e (KeyMissing"},
		{waitAll, []wire.FleetBox{has, away}, false, "c (not reporting)"},
		{waitAll, []wire.FleetBox{has, back}, true, ""},
		{waitQuorum, []wire.FleetBox{has, away}, false, "c"},
		{waitQuorum, []wire.FleetBox{has, back, behind}, true, "b"},
		{waitQuorum, []wire.FleetBox{has, away, behind}, false, "c (not reporting), b"},
	} {
		missing, gone, done := behindOf(test.boxes, 10, test.of)
		if all := strings.Join(missing, ", "); done != test.done || !strings.HasPrefix(all, test.missing) {
			t.Errorf("%s of %v: done %v, missing %s", test.of, test.boxes, done, all)
		}
		if test.of != "" && test.of != waitPresent && len(gone) > 0 {
			t.Errorf("%s of %v does not wait for %v", test.of, test.boxes, gone)
		}
	}
}

func TestWaiting(t *testing.T) {
	for text, want := range map[string]string{"": "0s ", "false": "0s ", "true": "30s ", "5s": "5s ", "all": "30s all", "quorum,2m": "2m0s quorum", "box,1s": "1s box"} {
		v := ApplyVerb()
		if text != "" {
			v.Option("wait").Texts = []string{text}
		}
		w, err := patienceOf(v)
		if got := w.timeout.String() + " " + w.boxes; err != nil || got != want {
			t.Errorf("--wait=%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"some", "all,", "all,never", "2m,all", "-1s"} {
		v := ApplyVerb()
		v.Option("wait").Texts = []string{text}
		if w, err := patienceOf(v); err == nil {
			t.Errorf("--wait=%s is taken as %+v", text, w)
		}
	}
}
