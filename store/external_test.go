package store

import (
	"errors"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// A client that asks for a port on an external IP that somebody has is told who has it; a
// file's Service is for those to sort out who serve it.
func TestExternalIPsOfTwoServices(t *testing.T) {
	b := newBox(t)
	service := func(name, spec string) Write {
		return write(refine(document(t, name+" {externalIPs: [198.51.100.99, 198.51.100.98], "+spec+"}")))
	}
	refused := func(w Write, want ...string) {
		t.Helper()
		var errs object.Errors
		if got := b.ask(w); len(want) > 0 && !errors.As(got.Err, &errs) || len(want) == 0 && got.Err != nil {
			t.Errorf("%s: %v", w.Ref, got.Err)
		}
		for i, e := range errs {
			if len(errs) != len(want) || e.Error() != want[i] {
				t.Errorf("%s: %v, want %q", w.Ref, errs, want)
				return
			}
		}
		b.check()
	}
	refused(service("shop/first", ""))
	taken := []string{
		`spec.externalIPs[0]: Invalid value: "198.51.100.99": TCP port 80 on it is already served by Service shop/first`,
		`spec.externalIPs[1]: Invalid value: "198.51.100.98": TCP port 80 on it is already served by Service shop/first`,
	}
	refused(service("second", ""), taken...)
	refused(service("second", "ports: [{port: 81}]"))
	refused(service("third", "ports: [{port: 80, protocol: UDP}]"))
	refused(service("second", "ports: [{port: 80}]"), taken...)
	refused(service("headless", "clusterIP: None"))
	// Who has it may change in other ways, also beside somebody whom a file has put there.
	b.apply("a.yaml", "old {externalIPs: [198.51.100.99]}")
	refused(changed(b, ref("old"), func(svc *object.Service) { svc.Metadata.Labels = map[string]string{"a": "b"} }))
	refused(changed(b, object.Ref{Kind: object.KindService, Namespace: "shop", Name: "first"}, func(svc *object.Service) { svc.Spec.SessionAffinity = "ClientIP" }))

	b.restart()
	b.sync()
	refused(service("second", ""), `spec.externalIPs[0]: Invalid value: "198.51.100.99": TCP port 80 on it is already served by Service default/old`, taken[1])
	b.apply("a.yaml", "")
	// What a call gives up and takes counts for those behind it.
	results, err := b.s.Write(
		Write{Ref: object.Ref{Kind: object.KindService, Namespace: "shop", Name: "first"}, Delete: true},
		service("second", ""), service("fourth", ""), service("second", "ports: [{port: 90}]"), service("fourth", ""))
	if err != nil {
		t.Fatal(err)
	}
	for i, refused := range []bool{false, false, true, false, false} {
		if got := results[i].Err; (got != nil) != refused {
			t.Errorf("write %d: %v", i, got)
		}
	}
	b.check()
}
