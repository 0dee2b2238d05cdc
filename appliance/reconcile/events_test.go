package reconcile

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/control"
	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// events are all Events, one a line.
func (r *rig) events() string {
	r.t.Helper()
	list, _, err := r.store.List(object.KindEvent, "", 0)
	if err != nil {
		r.t.Fatal(err)
	}
	var b strings.Builder
	for _, o := range list {
		e := o.(*object.Event)
		fmt.Fprintf(&b, "%s %s/%s %s %s: %s x%d\n", e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Type, e.Reason, e.Message, e.Count)
	}
	return b.String()
}

// recorder gives the loop one that a test flushes.
func (r *rig) recorder() *control.Recorder {
	rec := control.NewRecorder(r.store, control.RecorderConfig{
		Host: "gw1", Log: slog.New(slog.NewTextHandler(&r.logged, nil)), Clock: func() time.Time { return r.clock },
	})
	r.opts.Publisher.Reporter.Events = rec
	return rec
}

func (r *rig) flush(rec *control.Recorder) {
	r.t.Helper()
	if err := rec.Flush(); err != nil {
		r.t.Fatal(err)
	}
}

// The bounds of control.Recorder.
const (
	eventRefresh     = 30 * time.Minute
	eventBatch       = 100
	eventsAtOnce     = 500
	maxHappenings    = 1000
	objectEvents     = 10
	objectEventEvery = time.Minute
)

// pendingService is a load balancer that there is no IP for.
const pendingService = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10, ports: [{port: 80}]}
`

func TestProblemsBecomeEvents(t *testing.T) {
	r := newRig(t)
	rec := r.recorder()
	r.host()
	r.write("web.yaml", pendingService)
	r.step()
	r.flush(rec)
	got := r.events()
	if strings.Count(got, "\n") != 1 || !strings.HasPrefix(got, "Service default/web Warning Pending: ") || !strings.Contains(got, "(web.yaml:5:8) x1") {
		t.Fatalf("events:\n%s", got)
	}
	list, _, _ := r.store.List(object.KindEvent, "default", 0)
	e := list[0].(*object.Event)
	svc, _ := r.store.Get(object.Ref{Kind: object.KindService, Namespace: "default", Name: "web"})
	if e.InvolvedObject.UID != svc.GetMeta().UID || e.InvolvedObject.UID == "" || e.Source.Component != "svcctl" || !e.LastTimestamp.Equal(r.clock) {
		t.Errorf("the event is %+v", e)
	}
	// Clients of events.k8s.io/v1 refuse an Event without it.
	if e.EventTime == nil || !e.EventTime.Equal(r.clock) {
		t.Errorf("its eventTime is %v", e.EventTime)
	}

	// What lasts is told once, and again before the Event is forgotten.
	revision := r.store.Revision()
	for range 3 {
		r.step()
		r.flush(rec)
	}
	if r.store.Revision() != revision {
		t.Error("the same problem wrote another event")
	}
	r.clock = r.clock.Add(eventRefresh)
	r.flush(rec)
	if got := r.events(); !strings.Contains(got, "x2\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("after half an hour:\n%s", got)
	}

	// What comes again is counted, wherever in the file it is by now.
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	r.flush(rec)
	r.write("web.yaml", "# a comment\n"+pendingService+"---"+strings.SplitN(web("web", "10.96.0.10", "10.1.0.1"), "---", 2)[1])
	r.step()
	r.flush(rec)
	if got := r.events(); !strings.Contains(got, "(web.yaml:6:8) x3\n") || strings.Count(got, "\n") != 1 {
		t.Errorf("what came again:\n%s", got)
	}
}

func TestEventsAfterARestart(t *testing.T) {
	r := newRig(t)
	rec := r.recorder()
	r.host()
	r.write("web.yaml", pendingService)
	r.step()
	r.flush(rec)
	r.start()
	rec = r.recorder()
	r.host()
	r.write("web.yaml", pendingService)
	r.step()
	r.flush(rec)
	if r.engine.Commits() != 0 {
		t.Errorf("a restart over unchanged input wrote %d commits:\n%s", r.engine.Commits(), r.events())
	}
	r.clock = r.clock.Add(eventRefresh)
	r.flush(rec)
	if got := r.events(); !strings.Contains(got, "x2\n") {
		t.Errorf("half an hour later:\n%s", got)
	}
}

func TestEventsOfWhatIsNotThere(t *testing.T) {
	r := newRig(t)
	rec := r.recorder()
	r.host()
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.write("bad.yaml", strings.Replace(web("bad", "10.96.0.10", "10.1.0.2"), "80", "99999", 1))
	r.write("far.yaml", inNamespace("far", strings.Replace(web("bad", "10.96.0.12", "10.1.0.2"), "80", "99999", 1))[:120])
	r.step()
	r.flush(rec)
	if got := r.events(); !strings.Contains(got, "Service default/bad Warning") || strings.Contains(got, "far/") {
		t.Errorf("events:\n%s", got)
	}
}

// Objects of other kinds may have names that Events cannot have, as ClusterRoles with a colon, and refused documents any.
func TestEventsOfNamesThatEventsCannotHave(t *testing.T) {
	r := newRig(t)
	rec := r.recorder()
	r.host()
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	var all []manifest.Problem
	for _, name := range []string{"metallb-system:speaker", "{{name}}", strings.Repeat("a", 235) + "-" + strings.Repeat("b", 17), "Ä"} {
		all = append(all, manifest.Problem{Object: object.Ref{Kind: "ClusterRole", Namespace: "default", Name: name}, Reason: "NotServed", Message: "ignored"})
	}
	rec.Report(nil, all)
	r.flush(rec)
	if got := r.events(); strings.Count(got, "Warning NotServed: ignored x1\n") != len(all) || strings.Contains(r.logged.String(), "cannot be written") {
		t.Errorf("events:\n%s\nlog:\n%s", got, r.logged.String())
	}
}

func TestEventsAreBounded(t *testing.T) {
	r := newRig(t)
	r.host()
	r.write("web.yaml", web("web", "10.96.0.10", "10.1.0.1"))
	r.step()
	rec := r.recorder()
	ref := object.Ref{Kind: object.KindService, Namespace: "default", Name: "web"}
	problem := func(ref object.Ref, i int) manifest.Problem {
		return manifest.Problem{Object: ref, Reason: "Flapping", Message: fmt.Sprint("attempt ", i)}
	}
	// An object whose problem is another one all the time.
	for i := range 1000 {
		rec.Report([]manifest.Problem{problem(ref, i-1)}, []manifest.Problem{problem(ref, i)})
		r.flush(rec)
	}
	if n := strings.Count(r.events(), "\n"); n != objectEvents {
		t.Errorf("%d events of one object, want %d", n, objectEvents)
	}
	r.clock = r.clock.Add(objectEventEvery)
	r.flush(rec)
	if got := r.events(); strings.Count(got, "\n") != objectEvents+1 || !strings.Contains(got, "attempt 999") {
		t.Errorf("a minute later:\n%s", got)
	}

	// Ten thousand objects at once.
	var all []manifest.Problem
	for i := range 10_000 {
		all = append(all, problem(object.Ref{Kind: object.KindService, Namespace: "default", Name: fmt.Sprint("s", i)}, i))
	}
	rec.Report(nil, all)
	commits := r.engine.Commits()
	r.flush(rec)
	if n := r.engine.Commits() - commits; n != eventsAtOnce/eventBatch {
		t.Errorf("%d commits", n)
	}
	r.flush(rec)
	r.flush(rec)
	if n := strings.Count(r.events(), "\n"); n > maxHappenings+objectEvents+1 {
		t.Errorf("%d events", n)
	}
}

// An engine that refuses loses no Event.
func TestEventsThatCannotBeWritten(t *testing.T) {
	r := newRig(t)
	rec := r.recorder()
	r.host()
	r.write("web.yaml", pendingService)
	r.step()
	r.engine.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	if rec.Flush() == nil {
		t.Error("no error")
	}
	r.engine.Inject(nil)
	r.flush(rec)
	if got := r.events(); !strings.Contains(got, "x1\n") {
		t.Errorf("events:\n%s", got)
	}
}
