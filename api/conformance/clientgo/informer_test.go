package clientgo

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/features"
	featurestesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// seen counts what an informer reports.
type seen struct {
	mu      sync.Mutex
	entries []string
}

func (s *seen) add(what string, object any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := "?"
	switch o := object.(type) {
	case meta.Object:
		name = o.GetName()
	case cache.DeletedFinalStateUnknown:
		name = o.Key + " (missed)"
	}
	s.entries = append(s.entries, what+" "+name)
}

func (s *seen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.entries, ", ")
}

func (s *seen) follow(informer cache.SharedIndexInformer) error {
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.add("add", o) },
		UpdateFunc: func(_, o any) { s.add("update", o) },
		DeleteFunc: func(o any) { s.add("delete", o) },
	})
	return err
}

// TestInformers: typed and metadata informers, with WatchList and with list and watch,
// see each change once, and go on over the end of the appliance.
func TestInformers(t *testing.T) {
	w := newWorld(t)
	for _, watchList := range []bool{true, false} {
		t.Run(fmt.Sprintf("WatchList=%v", watchList), func(t *testing.T) {
			featurestesting.SetFeatureDuringTest(t, features.WatchListClient, watchList)
			ns := w.namespace(t, fmt.Sprintf("informers-%v", watchList))
			informersSee(t, w, ns)
		})
	}
}

func informersSee(t *testing.T, w *world, ns string) {
	maps := w.client.CoreV1().ConfigMaps(ns)
	if _, err := maps.Create(t.Context(), configMap("there", "1"), meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	typed := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithNamespace(ns))
	onlyMeta, err := metadata.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	bare := metadatainformer.NewFilteredSharedInformerFactory(onlyMeta, 0, ns, nil)
	var full, light seen
	check(t,
		full.follow(typed.Core().V1().ConfigMaps().Informer()),
		light.follow(bare.ForResource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Informer()),
	)
	// Those of every other kind that clients watch get their first look too.
	others := []cache.SharedIndexInformer{
		typed.Core().V1().Services().Informer(), typed.Discovery().V1().EndpointSlices().Informer(), typed.Core().V1().Namespaces().Informer(),
		typed.Core().V1().Nodes().Informer(), typed.Networking().V1().ServiceCIDRs().Informer(), typed.Networking().V1().IPAddresses().Informer(),
		typed.Core().V1().Endpoints().Informer(), typed.Core().V1().Pods().Informer(), typed.Core().V1().Events().Informer(),
		typed.Events().V1().Events().Informer(), typed.Coordination().V1().Leases().Informer(), typed.Core().V1().Secrets().Informer(),
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	typed.Start(ctx.Done())
	bare.Start(ctx.Done())
	synced := []cache.InformerSynced{typed.Core().V1().ConfigMaps().Informer().HasSynced}
	for _, informer := range others {
		synced = append(synced, informer.HasSynced)
	}
	timeout, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	if !cache.WaitForCacheSync(timeout.Done(), synced...) {
		t.Fatal("the informers did not sync")
	}
	bare.WaitForCacheSync(timeout.Done())

	change := func(name, value string) {
		t.Helper()
		if _, err := maps.Update(t.Context(), configMap(name, value), meta.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	change("there", "2")
	if _, err := maps.Create(t.Context(), configMap("new", "1"), meta.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "new", meta.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want := "add there, update there, add new, delete new"
	for name, s := range map[string]*seen{"typed": &full, "metadata": &light} {
		eventually(t, time.Minute, func() error { return expect(name, s.String(), want) })
	}
	w.Kill()
	w.Start()
	change("there", "3")
	want += ", update there"
	for name, s := range map[string]*seen{"typed": &full, "metadata": &light} {
		eventually(t, 60*time.Second, func() error { return expect(name, s.String(), want) })
	}
	got, err := typed.Core().V1().ConfigMaps().Lister().ConfigMaps(ns).Get("there")
	if err != nil {
		t.Fatal(err)
	}
	check(t, expect("in the cache", got.Data["v"], "3"))
	cancel()
	typed.Shutdown()
	bare.Shutdown()
}

// TestLeaderElection: one leads, and when it lets go the other does.
func TestLeaderElection(t *testing.T) {
	w := newWorld(t)
	ns := w.namespace(t, "election")
	leading := make(chan string, 10)
	run := func(ctx context.Context, name string) {
		lock := &resourcelock.LeaseLock{
			LeaseMeta: meta.ObjectMeta{Name: "leader", Namespace: ns}, Client: w.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		}
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: lock, ReleaseOnCancel: true,
			LeaseDuration: 10 * time.Second, RenewDeadline: 8 * time.Second, RetryPeriod: 200 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { leading <- name },
				OnStoppedLeading: func() {},
			},
		})
	}
	var candidates sync.WaitGroup
	defer candidates.Wait()
	first, stop := context.WithCancel(t.Context())
	candidates.Go(func() { run(first, "one") })
	wait := func(want string) {
		t.Helper()
		select {
		case got := <-leading:
			check(t, expect("leader", got, want))
		case <-time.After(time.Minute):
			t.Fatalf("%s does not lead", want)
		}
	}
	wait("one")
	second, end := context.WithCancel(t.Context())
	defer end()
	candidates.Go(func() { run(second, "two") })
	w.Kill() // the lease lives longer than this takes
	w.Start()
	eventually(t, time.Minute, func() error {
		lease, err := w.client.CoordinationV1().Leases(ns).Get(t.Context(), "leader", meta.GetOptions{})
		if err != nil {
			return err
		}
		return expect("holder", *lease.Spec.HolderIdentity, "one")
	})
	stop()
	wait("two")
}
