package store

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"svcctl.io/svcctl/store/object"
)

func TestFinalizers(t *testing.T) {
	for _, kind := range []string{object.KindService, object.KindConfigMap, object.KindNamespace} {
		b := newBox(t)
		namespace := "default"
		if !storedKinds[kind] {
			namespace = ""
		}
		o := made(t, kind, namespace, "web")
		o.GetMeta().Finalizers = []string{"example.com/a", "example.com/b"}
		b.must(write(o))
		ref := object.RefOf(o)
		before := b.s.Revision()
		gone := b.must(Write{Ref: ref, Delete: true})
		if gone.Removed || gone.Object.GetMeta().DeletionTimestamp == nil || b.s.Revision() != before+1 {
			t.Fatalf("%s: deleted: %+v", kind, gone)
		}
		if again := b.must(Write{Ref: ref, Delete: true}); again.Object != gone.Object || b.s.Revision() != before+1 {
			t.Errorf("%s: deleted again: %+v", kind, again)
		}
		b.restart()
		more := b.ask(changed(b, ref, func(o object.Object) { o.GetMeta().Finalizers = append(o.GetMeta().Finalizers, "example.com/c") }))
		if more.Err == nil || !strings.Contains(more.Err.Error(), "no new finalizers can be added") {
			t.Errorf("%s: one more finalizer: %v", kind, more.Err)
		}
		one := b.must(changed(b, ref, func(o object.Object) {
			o.GetMeta().Finalizers, o.GetMeta().DeletionTimestamp = o.GetMeta().Finalizers[:1], nil
		}))
		if one.Removed || one.Object.GetMeta().DeletionTimestamp == nil {
			t.Errorf("%s: with one finalizer: %+v", kind, one)
		}
		last := changed(b, ref, func(o object.Object) { o.GetMeta().Finalizers = nil })
		last.DryRun = true
		if shown := b.must(last); !shown.Removed {
			t.Errorf("%s: a dry run of the removal: %+v", kind, shown)
		}
		last.DryRun = false
		if written := b.must(last); !written.Removed {
			t.Errorf("%s: without finalizers: %+v", kind, written)
		}
		if o, _ := b.s.Get(ref); o != nil {
			t.Errorf("%s is still there", kind)
		}
		events, err := b.s.Events(before, 0)
		if err != nil || len(events) != 3 || events[2].New != nil || len(events[2].Old.GetMeta().Finalizers) != 1 {
			t.Errorf("%s: events %+v, %v", kind, events, err)
		}
	}
}

// Kubernetes' service controller is what clients know as the end of a load balancer, and nobody else here takes its
// finalizer away; those of others keep the Service, and so does it where the load balancer is somebody else's.
func TestFinalizerOfLoadBalancers(t *testing.T) {
	const ours, foreign = finalizerLoadBalancer, "example.com/a"
	for name, tt := range map[string]struct {
		finalizers []string
		class      string
		stays      bool
	}{
		"its own":                   {[]string{ours}, "", false},
		"its own, of our class":     {[]string{ours}, LoadBalancerClass, false},
		"its own, of another class": {[]string{ours}, "example.com/lb", true},
		"and one of another":        {[]string{ours, foreign}, "", true},
	} {
		b := newBox(t)
		svc := made(t, object.KindService, "default", "web").(*object.Service)
		svc.Metadata.Finalizers, svc.Spec.Type = tt.finalizers, object.TypeLoadBalancer
		if tt.class != "" {
			svc.Spec.LoadBalancerClass = &tt.class
		}
		b.must(write(svc))
		ref := object.RefOf(svc)
		if gone := b.must(Write{Ref: ref, Delete: true}); gone.Removed == tt.stays {
			t.Errorf("%s: removed %t", name, gone.Removed)
		}
		if name == "and one of another" {
			last := b.must(changed(b, ref, func(o object.Object) { o.GetMeta().Finalizers = []string{ours} }))
			if !last.Removed {
				t.Errorf("%s: with its own alone: %+v", name, last)
			}
		}
	}
}

func TestNamespaceGoesWithItsLastObject(t *testing.T) {
	b := newBox(t)
	b.must(write(made(t, object.KindNamespace, "", "shop")))
	b.must(write(made(t, object.KindConfigMap, "shop", "a")))
	b.must(write(made(t, object.KindEvent, "shop", "a")))
	held := made(t, object.KindConfigMap, "shop", "b")
	held.GetMeta().Finalizers = []string{"example.com/a"}
	b.must(write(held))
	shop := namespaceRef("shop")
	remove := []Write{{Ref: object.Ref{Kind: object.KindConfigMap, Namespace: "shop", Name: "a"}, Delete: true},
		{Ref: object.RefOf(held), Delete: true}, {Ref: shop, Delete: true}}
	results, err := b.s.Write(remove...)
	if err != nil || !results[0].Removed || results[1].Removed || results[2].Removed ||
		results[2].Object.(*object.Namespace).Status.Phase != object.NamespaceTerminating {
		t.Fatalf("%+v, %v", results, err)
	}
	b.restart()
	before := b.s.Revision()
	b.must(changed(b, object.RefOf(held), func(o object.Object) { o.GetMeta().Finalizers = nil }))
	if o, _ := b.s.Get(shop); o != nil {
		t.Errorf("it is still there: %+v", o)
	}
	if events, err := b.s.Events(before, 0); err != nil || len(events) != 2 || events[1].Ref != shop || events[1].New != nil {
		t.Errorf("%+v, %v", events, err)
	}
	b.must(Write{Ref: object.Ref{Kind: object.KindEvent, Namespace: "shop", Name: "a"}, Delete: true})
	// So it is when a controller removes the last one.
	b.must(write(made(t, object.KindNamespace, "", "shop")))
	slice := made(t, object.KindEndpointSlice, "shop", "a")
	if _, err := b.s.Generate("endpoints", []object.Object{slice}, nil); err != nil {
		t.Fatal(err)
	}
	if b.must(Write{Ref: shop, Delete: true}).Removed {
		t.Error("it went before what a controller has in it")
	}
	if _, err := b.s.Generate("endpoints", nil, []object.Ref{object.RefOf(slice)}); err != nil {
		t.Fatal(err)
	}
	if o, _ := b.s.Get(shop); o != nil {
		t.Errorf("it outlived what a controller had in it: %+v", o)
	}
	// One that comes in the same call counts, too.
	results, err = b.s.Write(write(made(t, object.KindNamespace, "", "other")), write(made(t, object.KindConfigMap, "other", "a")),
		Write{Ref: namespaceRef("other"), Delete: true})
	if err != nil || results[2].Removed {
		t.Errorf("%+v, %v", results, err)
	}
	// Without such objects one call removes all of it.
	b.must(write(made(t, object.KindNamespace, "", "shop")))
	b.must(write(made(t, object.KindConfigMap, "shop", "a")))
	results, err = b.s.Write(remove[0], remove[2])
	if err != nil || !results[0].Removed || !results[1].Removed {
		t.Errorf("%+v, %v", results, err)
	}
	b.check()
}

// TestManyGoWithTheirNamespace: to remove many objects of a Namespace that goes takes no more work
// than of one that stays. It counts CPU time, of which others on the machine have no share; garbage
// collection may add to it, so the best of several attempts counts.
func TestManyGoWithTheirNamespace(t *testing.T) {
	b := newBox(t)
	spent := func() time.Duration {
		var use syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
			t.Fatal(err)
		}
		return time.Duration(use.Utime.Nano() + use.Stime.Nano())
	}
	remove := func(namespace string, goes bool) time.Duration {
		b.must(write(made(t, object.KindNamespace, "", namespace)))
		held := made(t, object.KindConfigMap, namespace, "held")
		held.GetMeta().Finalizers = []string{"example.com/a"}
		b.must(write(held))
		var puts, removals []Write
		for i := range 2000 {
			o := made(t, object.KindConfigMap, namespace, fmt.Sprint("cm-", i))
			puts, removals = append(puts, write(o)), append(removals, Write{Ref: object.RefOf(o), Delete: true})
		}
		if _, err := b.s.Write(puts...); err != nil {
			t.Fatal(err)
		}
		if goes {
			b.must(Write{Ref: namespaceRef(namespace), Delete: true})
		}
		began := spent()
		if _, err := b.s.Write(removals...); err != nil {
			t.Fatal(err)
		}
		return spent() - began
	}
	const attempts = 5
	for attempt := 1; ; attempt++ {
		stays, goes := remove(fmt.Sprint("stays-", attempt), false), remove(fmt.Sprint("goes-", attempt), true)
		if goes <= 10*stays {
			return
		}
		if attempt == attempts {
			t.Fatalf("it took %v, and %v where the Namespace stays", goes, stays)
		}
	}
}
