package control

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/advertise"
	"svcctl.io/svcctl/appliance/endpoints"
	"svcctl.io/svcctl/appliance/test/faulty"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/object"
)

// slowEngine is an engine whose commits of Services wait, as all do in a fleet while etcd is away.
type slowEngine struct {
	*faulty.Memory
	gate    sync.RWMutex // such a commit waits while it is locked
	waiting chan struct{}
}

func (e *slowEngine) Commit(t engine.Transaction) error {
	if slices.ContainsFunc(t.Puts, func(p engine.Pair) bool { return strings.HasPrefix(p.Key, "object/Service/") }) {
		select {
		case e.waiting <- struct{}{}:
		default:
		}
		e.gate.RLock()
		defer e.gate.RUnlock()
	}
	return e.Memory.Commit(t)
}

// Beside a loop that never waits for a commit, the store learns of pools, and the loop hears of them.
func TestTheLoopDoesNotWaitForPools(t *testing.T) {
	slow := &slowEngine{Memory: faulty.NewMemory(), waiting: make(chan struct{}, 1)}
	cfg := store.Config{ClusterIPRanges: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}
	objects, err := store.Open(slow, cfg)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	planned := make(chan struct{}, 10)
	pools := NewPools(objects, advertise.Box{ServiceRanges: cfg.ClusterIPRanges, NodeName: "gw1"}, func(*advertise.Plan) { planned <- struct{}{} })
	beside := NewBeside(NewClusterObjects(ClusterConfig{NodeName: "gw1"}, objects, nil), NewEndpoints(endpoints.Facts{}, objects), pools, objects, func() bool { return false }, log)
	woken := make(chan struct{}, 10)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		beside.Run(ctx, func() <-chan struct{} { return nil }, func() { woken <- struct{}{} })
	}()
	defer func() {
		stop()
		<-ended
	}()
	loop := LoopPools{beside}
	await := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Fatalf("in vain: %s", what)
		}
	}
	await("the first plan", planned)
	await("the loop is told of it", woken)

	pool := &object.IPAddressPool{
		TypeMeta: object.TypeMeta{Kind: object.KindIPAddressPool, APIVersion: object.APIVersionMetalLB},
		Metadata: object.ObjectMeta{Namespace: "metallb-system", Name: "lan"},
		Spec:     object.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/28"}},
	}
	put := func(o object.Object) {
		t.Helper()
		if r, err := objects.Write(store.Write{Ref: object.RefOf(o), Object: o, Create: true}); err != nil || r[0].Err != nil {
			t.Fatal(err, r)
		}
	}
	web := &object.Service{
		TypeMeta: object.TypeMeta{Kind: object.KindService, APIVersion: object.APIVersionCore},
		Metadata: object.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:     object.ServiceSpec{Type: object.TypeLoadBalancer, Ports: []object.ServicePort{{Port: 80}}},
	}
	put(web)
	<-slow.waiting
	slow.gate.Lock()
	goOn := sync.OnceFunc(slow.gate.Unlock)
	defer goOn()
	put(pool)
	await("the plan with the pool", planned)
	await("web gets an address", slow.waiting)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if changed, err := loop.Sync(); changed || err != nil {
			t.Errorf("the store cannot say yet what the pools are: %v, %v", changed, err)
		}
	}()
	await("the loop goes on while that commit waits", asked)
	goOn()
	for changed := false; !changed; {
		await("the loop is told of the pools", woken)
		if changed, err = loop.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	if svc, _, _ := objects.Service("default/web"); len(svc.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("web has %v", svc.Status.LoadBalancer.Ingress)
	}
	if changed, _ := loop.Sync(); changed {
		t.Error("the loop is told twice")
	}
}
