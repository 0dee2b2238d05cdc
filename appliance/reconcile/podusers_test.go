package reconcile

import (
	"slices"
	"testing"

	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/object"
)

// podWorld has Pods, and one Service that selects all of them.
type podWorld struct {
	Objects
	pods map[string]*object.Pod
}

func (w podWorld) Pod(key string) *object.Pod                   { return w.pods[key] }
func (w podWorld) Selecting(string, map[string]string) []string { return []string{"a/selecting"} }

// A Pod has Services planned again that follow its probe, or did, and no others.
func TestPodUsers(t *testing.T) {
	probed := &object.Pod{Spec: object.PodSpec{Containers: []object.Container{{ReadinessProbe: new(object.Probe)}}}}
	w := podWorld{pods: map[string]*object.Pod{"a/plain": {}, "a/probed": probed}}
	u := newPodUsers()
	want := func(when string, pod string, services ...string) {
		t.Helper()
		if got := u.affected(w, []string{pod}); !slices.Equal(got, services) {
			t.Errorf("%s: %s affects %v, want %v", when, pod, got, services)
		}
	}
	want("at first", "a/plain")
	want("at first", "a/probed", "a/selecting")
	want("at first", "a/gone")

	u.set("a/selecting", &resolve.Output{Probed: true})
	want("when it follows probes", "a/plain", "a/selecting")
	u.set("a/naming", &resolve.Output{Probed: true, Pods: []string{"gone", "plain"}})
	want("of one that a slice names", "a/gone", "a/naming")
	want("of one that a slice names", "a/plain", "a/naming", "a/selecting")

	u.set("a/naming", &resolve.Output{})
	u.set("a/selecting", &resolve.Output{})
	want("at last", "a/plain")
	want("at last", "a/gone")
	if len(u.by)+len(u.of)+len(u.probed) > 0 {
		t.Errorf("something is left: %+v", u)
	}

	// Who is asked for the first time after Services were planned knows them too.
	late := newPodUsers()
	late.set("a/naming", &resolve.Output{Probed: true, Pods: []string{"gone", "plain"}})
	late.set("a/other", &resolve.Output{Probed: true, Pods: []string{"gone"}})
	if got := late.affected(w, []string{"a/gone"}); !slices.Equal(got, []string{"a/naming", "a/other"}) {
		t.Errorf("asked late: %v are affected", got)
	}
	late.set("a/other", &resolve.Output{})
	if got := late.affected(w, []string{"a/gone"}); !slices.Equal(got, []string{"a/naming"}) {
		t.Errorf("when one does not name it any more: %v are affected", got)
	}
}
