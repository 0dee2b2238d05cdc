package fleet_test

import (
	"fmt"
	"strings"
	"testing"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// versions are all objects with their owners, without what is by chance or by the moment.
func versions(s *store.Store) string {
	var b strings.Builder
	for _, kind := range []string{object.KindService, object.KindEndpointSlice, object.KindEndpoints, object.KindPod, object.KindNamespace, object.KindNode, object.KindSecret} {
		all, _, _ := s.List(kind, "", 0)
		for _, o := range all {
			address := ""
			if svc, is := o.(*object.Service); is {
				address = svc.Spec.ClusterIP
			}
			_, owner := s.Get(object.RefOf(o))
			fmt.Fprintf(&b, "%s %+v %s %v\n", object.RefOf(o), owner, address, o.GetMeta().Labels)
		}
	}
	return b.String()
}

// Test615 makes changes on a copy of the objects of a box of a fleet: it decides as the box does, files and who reads
// them among it, and neither the box nor etcd notices.
func Test615_a_copy_decides_as_the_box_does(t *testing.T) {
	c, a, b := twoBoxes(t, "web")
	a.reads(t, directory{"web.yaml": serviceFile("filed")}, 0)
	b.fresh(t)
	client := c.client()
	revision := func() int64 {
		t.Helper()
		resp, err := client.Get(t.Context(), c.key("head"))
		if err != nil {
			t.Fatal(err)
		}
		return resp.Kvs[0].ModRevision
	}
	named := func(name, ip string) *object.Service {
		svc := service(name)
		svc.Spec.ClusterIP = ip
		return svc
	}
	web := a.clusterIP("web")
	filed := func(label string) store.Write {
		o, _ := a.Get(serviceRef("filed"))
		svc := object.DeepCopy(o).(*object.Service)
		svc.Metadata.Labels = map[string]string{"by": label}
		return store.Write{Ref: serviceRef("filed"), Object: svc, By: store.Caller{User: "test", Manager: "test"}}
	}
	for n, change := range []func(s *store.Store) string{
		func(s *store.Store) string {
			r, err := s.Write(store.Write{Ref: serviceRef("taken"), Object: named("taken", web), Create: true})
			return fmt.Sprint(err, r[0].Err)
		},
		func(s *store.Store) string {
			r, err := s.Write(store.Write{Ref: serviceRef("web"), Delete: true})
			return fmt.Sprint(err, r[0].Err, r[0].Removed)
		},
		func(s *store.Store) string {
			r, err := s.Write(store.Write{Ref: serviceRef("heir"), Object: named("heir", web), Create: true})
			return fmt.Sprint(err, r[0].Err)
		},
		func(s *store.Store) string {
			r, err := s.Write(filed("a client"))
			return fmt.Sprint(err, r[0].Err)
		},
	} {
		for _, x := range []*box{b, a} { // the last one makes it so
			before, at, mine := revision(), x.Revision(), versions(x.Store)
			fork, of, err := x.Fork()
			if err != nil || of != at {
				t.Fatalf("change %d: a copy of revision %d of box %s, want %d: %v", n, of, x.cfg.Box, at, err)
			}
			if got := versions(fork); got != mine {
				t.Fatalf("change %d: the copy has\n%s\nand box %s\n%s", n, got, x.cfg.Box, mine)
			}
			foreseen := change(fork)
			if versions(x.Store) != mine || x.Revision() != at || revision() != before {
				t.Fatalf("change %d: a change of the copy is one of box %s", n, x.cfg.Box)
			}
			if n == 3 && x == b { // what a client adds to an object of a file
				if want := change(b.Store); foreseen != want || !strings.Contains(want, "lb:web.yaml") {
					t.Errorf("change %d on box b: foreseen %s, and it is %s", n, foreseen, want)
				}
				continue
			}
			if x == b {
				continue
			}
			if done := change(a.Store); done != foreseen || versions(fork) != versions(a.Store) {
				t.Fatalf("change %d: foreseen %s and\n%s\nit is %s and\n%s", n, foreseen, versions(fork), done, versions(a.Store))
			}
		}
		same(t, a, b)
	}
	// The files of the source that the box reads, and of one that it does not read.
	fork, _, err := a.Fork()
	if err != nil {
		t.Fatal(err)
	}
	if reader, here := fork.ForkReads("lb"); reader != "a" || !here {
		t.Errorf("box a reads: %s, %v", reader, here)
	}
	next := directory{"web.yaml": serviceFile("filed", "more")}
	if err := fork.SyncFork(next.files(), nil); err != nil {
		t.Fatal(err)
	}
	if a.reads(t, next, 0); versions(fork) == "" || !strings.Contains(versions(fork), "default/more") || strings.Count(versions(fork), "\n") != strings.Count(versions(a.Store), "\n") {
		t.Errorf("the copy has\n%s\nand box a\n%s", versions(fork), versions(a.Store))
	}
	other, _, err := b.Fork()
	if err != nil {
		t.Fatal(err)
	}
	if reader, here := other.ForkReads("lb"); reader != "a" || here {
		t.Errorf("box b reads: %s, %v", reader, here)
	}
}
