package apiserver

import (
	"fmt"
	"math"
	"net/netip"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// TestAllocationsHoldNobodyUp: however many ask who holds what, who writes waits for one of
// them at most.
func TestAllocationsHoldNobodyUp(t *testing.T) {
	objects, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}})
	if err != nil {
		t.Fatal(err)
	}
	var writes []store.Write
	for i := range 2000 {
		svc := &object.Service{
			TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
			Metadata: object.ObjectMeta{Name: fmt.Sprint("s", i), Namespace: "default"},
			Spec:     object.ServiceSpec{Ports: []object.ServicePort{{Port: 80, Protocol: object.ProtocolTCP}}},
		}
		writes = append(writes, store.Write{Ref: object.RefOf(svc), Object: svc, Create: true})
	}
	if _, err := objects.Write(writes...); err != nil {
		t.Fatal(err)
	}
	tell := (&answers{objects: objects}).allocations
	shortest := func(do func()) time.Duration {
		best := time.Hour
		for range 5 {
			began := time.Now()
			do()
			best = min(best, time.Since(began))
		}
		return best
	}
	alone := shortest(func() { tell(false, "", math.MaxInt) })

	stop := make(chan struct{})
	var askers sync.WaitGroup
	for range 100 {
		askers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					tell(false, "", math.MaxInt)
				}
			}
		})
	}
	time.Sleep(20 * alone) // real time: many questions are under way
	write := shortest(func() {
		if _, err := objects.Write(store.Write{Ref: writes[0].Ref, Delete: true, DryRun: true}); err != nil {
			t.Error(err)
		}
	})
	close(stop)
	askers.Wait()
	if write > 20*alone {
		t.Errorf("a write took %v at least, while 100 asked what takes %v", write, alone)
	}
}

// Test1117_one_value_has_its_holder_alone asks for the holder of one cluster IP among 20.
func Test1117_one_value_has_its_holder_alone(t *testing.T) {
	objects, err := store.Open(engine.NewMemory(), store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		svc := &object.Service{
			TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
			Metadata: object.ObjectMeta{Name: fmt.Sprint("s", i), Namespace: "default"},
			Spec:     object.ServiceSpec{ClusterIP: fmt.Sprint("10.96.0.", 10+i), Ports: []object.ServicePort{{Port: 80, Protocol: object.ProtocolTCP}}},
		}
		if _, err := objects.Write(store.Write{Ref: object.RefOf(svc), Object: svc, Create: true}); err != nil {
			t.Fatal(err)
		}
	}
	a := &answers{objects: objects}
	for value, want := range map[string]string{"10.96.0.17": "[{10.96.0.17 [default/s7] false}]", "10.96.0.9": "[]"} {
		pools := a.allocations(false, value, 20).Pools
		if pools[0].Used != 20 || fmt.Sprint(pools[0].Holders) != want || len(pools) != len(a.allocations(false, "", 20).Pools) {
			t.Errorf("%s: %+v, want the holders %s", value, pools, want)
		}
	}
	if p := a.allocations(false, "", 5).Pools[0]; p.Used != 20 || p.Held != 20 || len(p.Holders) != 5 || p.Holders[4].Value != "10.96.0.14" {
		t.Errorf("the first five of 20: %+v", p)
	}
}
