package control

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

func TestAssignedAddressesBecomeEvents(t *testing.T) {
	memory := faulty.NewMemory()
	open := func() (*store.Store, *Recorder) {
		objects, err := store.Open(memory, store.Config{
			ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
			Pools: []alloc.Pool{ // the first one is used up first
				{First: netip.MustParseAddr("198.51.100.1"), Last: netip.MustParseAddr("198.51.100.1")},
				{First: netip.MustParseAddr("203.0.113.1"), Last: netip.MustParseAddr("203.0.120.254")},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		rec := NewRecorder(objects, RecorderConfig{Host: "gw1", Assigns: true, Log: slog.New(slog.DiscardHandler)})
		return objects, rec
	}
	objects, rec := open()
	write := func(names ...string) {
		t.Helper()
		var writes []store.Write
		for _, name := range names {
			svc := &object.Service{
				TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
				Metadata: object.ObjectMeta{Name: name, Namespace: "default"},
				Spec:     object.ServiceSpec{Type: object.TypeLoadBalancer, Ports: []object.ServicePort{{Port: 80, Protocol: object.ProtocolTCP}}},
			}
			switch name {
			case "plain":
				svc.Spec.Type = object.TypeClusterIP
			case "foreign":
				svc.Spec.LoadBalancerClass = new("example.com/lb")
			}
			writes = append(writes, store.Write{Ref: object.RefOf(svc), Object: svc})
		}
		if results, err := objects.Write(writes...); err != nil || results[0].Err != nil {
			t.Fatal(err, results)
		}
	}
	flushed := func() string {
		t.Helper()
		if err := rec.Flush(); err != nil {
			t.Fatal(err)
		}
		list, _, err := objects.List(object.KindEvent, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, o := range list {
			e := o.(*object.Event)
			fmt.Fprintf(&b, "%s %s %s: %s x%d\n", e.InvolvedObject.Name, e.Type, e.Reason, e.Message, e.Count)
		}
		return b.String()
	}
	write("plain", "foreign", "web")
	const want = "web Normal IPAllocated: Assigned IP [\"198.51.100.1\"] x1\n"
	memory.Inject(func(engine.Transaction) faulty.Fault { return faulty.Refuse })
	if rec.Flush() == nil {
		t.Error("no error")
	}
	memory.Inject(nil)
	if got := flushed(); got != want {
		t.Errorf("events:\n%s", got)
	}
	// It is told once, over restarts too.
	memory = memory.Reopen()
	objects, rec = open()
	rec.now = func() time.Time { return time.Now().Add(time.Hour) }
	if got := flushed(); got != want {
		t.Errorf("after a restart:\n%s", got)
	}
	// A first start is no flood.
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprint("s", i))
	}
	write(many...)
	flushed()
	if n := strings.Count(flushed(), "\n"); n != 1+assignedAtOnce {
		t.Errorf("%d events", n)
	}
	// Without addresses to give, no Services are looked at.
	rec.assigns = false
	write("more")
	if n := strings.Count(flushed(), "\n"); n != 1+assignedAtOnce {
		t.Errorf("%d events", n)
	}
}

// What happens again is told again, by another process too; a problem that lasts is not.
func TestWhatHappensAgain(t *testing.T) {
	memory := faulty.NewMemory()
	ref := object.Ref{Kind: object.KindService, Namespace: "default", Name: "web"}
	for process := 1; process <= 2; process++ {
		objects, err := store.Open(memory, store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}})
		if err != nil {
			t.Fatal(err)
		}
		if process == 1 {
			svc := &object.Service{
				TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore}, Metadata: object.ObjectMeta{Name: "web", Namespace: "default"},
				Spec: object.ServiceSpec{Ports: []object.ServicePort{{Port: 80, Protocol: object.ProtocolTCP}}},
			}
			if results, err := objects.Write(store.Write{Ref: ref, Object: svc}); err != nil || results[0].Err != nil {
				t.Fatal(err, results)
			}
		}
		rec := NewRecorder(objects, RecorderConfig{Host: "gw1", Log: slog.New(slog.DiscardHandler)})
		rec.Record(ref, "nodeAssigned", "announcing 192.0.2.50", true)
		rec.Report(nil, []manifest.Problem{{Object: ref, Reason: "Lasts", Message: "it lasts"}})
		if err := rec.Flush(); err != nil {
			t.Fatal(err)
		}
		list, _, err := objects.List(object.KindEvent, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]int32{}
		for _, o := range list {
			counts[o.(*object.Event).Reason] = o.(*object.Event).Count
		}
		if counts["nodeAssigned"] != int32(process) || counts["Lasts"] != 1 {
			t.Errorf("after %d processes events are counted as %v", process, counts)
		}
		memory = memory.Reopen()
	}
}
