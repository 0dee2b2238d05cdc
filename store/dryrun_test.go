package store

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"svcctl.io/svcctl/store/object"
)

func TestDryRun(t *testing.T) {
	b := newBox(t, smallPool)
	b.must(write(refine(document(t, "old {type: LoadBalancer, externalTrafficPolicy: Local}"))))
	b.apply("a.yaml", "of-a-file {type: LoadBalancer}\nwaits {type: LoadBalancer}")
	b.now = b.now.Add(-time.Hour) // the clock goes back
	writes := []Write{
		write(refine(document(t, "one {type: NodePort, ipFamilyPolicy: PreferDualStack}"))),
		write(refine(document(t, "two {type: NodePort}"))),
		write(refine(document(t, "two {type: NodePort, sessionAffinity: ClientIP}"))),
		{Ref: ref("old"), Delete: true},
		write(refine(document(t, "three {type: LoadBalancer, externalTrafficPolicy: Local}"))),
		write(refine(document(t, "bad {clusterIP: 1.1.1.1}"))),
	}
	dry := make([]Write, len(writes))
	for i, w := range writes {
		dry[i] = w
		dry[i].DryRun = true
	}
	state, problems, revision, commits, waiting := objects(b.s), b.problems(), b.s.Revision(), b.engine.Commits(), len(b.s.outcomes.waiting)
	var shown []Written
	for range 3 {
		var err error
		if shown, err = b.s.Write(dry...); err != nil {
			t.Fatal(err)
		}
		b.check()
	}
	if objects(b.s) != state || b.problems() != problems || b.s.Revision() != revision || b.engine.Commits() != commits || len(b.s.outcomes.waiting) != waiting {
		t.Error("a dry run has changed something")
	}
	if events, err := b.s.Events(revision, 0); err != nil || len(events) != 0 {
		t.Errorf("events %v, %v", events, err)
	}
	if version := shown[0].Object.GetMeta().ResourceVersion; version != "" {
		t.Errorf("what is not there has version %s", version)
	}
	got, err := b.s.Write(writes...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if fmt.Sprint(got[i].Err) != fmt.Sprint(shown[i].Err) || got[i].Removed != shown[i].Removed {
			t.Errorf("write %d: %v, shown %v", i, got[i].Err, shown[i].Err)
		}
		if got[i].Err == nil && textOf(got[i].Object) != textOf(shown[i].Object) {
			t.Errorf("write %d:\n got   %s\n shown %s", i, textOf(got[i].Object), textOf(shown[i].Object))
		}
	}
	b.check()
}

func textOf(o object.Object) string {
	o = object.DeepCopy(o)
	o.GetMeta().UID, o.GetMeta().ResourceVersion = "", ""
	text, _ := json.Marshal(o)
	return string(text)
}

func TestDryRunsComeAfterTheOtherWrites(t *testing.T) {
	b := newBox(t)
	results, err := b.s.Write(
		Write{Ref: ref("web"), Object: refine(document(t, "web {clusterIP: 172.30.0.9}")), DryRun: true},
		write(refine(document(t, "other {clusterIP: 172.30.0.9}"))),
		Write{Ref: ref("third"), Object: refine(document(t, "third {type: NodePort}")), DryRun: true},
	)
	if err != nil || results[0].Err == nil || results[1].Err != nil || results[2].Err != nil || b.has("web") || !b.has("other") || b.has("third") {
		t.Errorf("%v, %+v", err, results)
	}
	b.check()
}
