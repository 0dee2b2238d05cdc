package clientgo

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

const (
	modelWriters  = 16
	modelWatchers = 4 // of each kind
	modelKeys     = 3 // of each writer
	modelRounds   = 3 // between them the appliance is killed
	modelRound    = 2 * time.Second
	modelRecovery = time.Minute // for everybody to be served again, on a busy machine
)

var modelKinds = []schema.GroupVersionResource{{Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "services"}}

// TestModel: 16 clients write while the appliance is killed twice. What was acknowledged
// is there, what was not is there wholly or not at all, and every watcher saw every
// change exactly once and in order.
func TestModel(t *testing.T) {
	w := newWorld(t)
	client, err := dynamic.NewForConfig(w.config)
	if err != nil {
		t.Fatal(err)
	}
	m := &model{client: client, namespace: w.namespace(t, "model"), logs: map[string][]attempt{}}
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	var watchers []*watcher
	for _, kind := range modelKinds {
		list, err := client.Resource(kind).Namespace(m.namespace).List(t.Context(), meta.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for range modelWatchers {
			x := &watcher{kind: kind, revision: list.GetResourceVersion()}
			watchers = append(watchers, x)
			m.tasks.Go(func() { x.run(watching, client.Resource(kind).Namespace(m.namespace)) })
		}
	}
	writing, done := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for i := range modelWriters {
		writers.Go(func() { m.write(writing, t, i) })
	}
	for round := range modelRounds {
		time.Sleep(modelRound) // real time: clients write meanwhile
		if round < modelRounds-1 {
			w.Kill()
			w.Start()
		}
	}
	done()
	writers.Wait()
	m.settle(t, watchers)
	stop()
	m.tasks.Wait()
	m.judge(t, watchers)
	judgeAddresses(t, w)
}

// judgeAddresses: each cluster IP has one Service, and is listed as given to it; nothing
// else is.
func judgeAddresses(t *testing.T, w *world) {
	services, err := w.client.CoreV1().Services("").List(t.Context(), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	given, err := w.client.NetworkingV1().IPAddresses().List(t.Context(), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	holders, listed := map[string]string{}, map[string]string{}
	for _, s := range services.Items {
		for _, ip := range s.Spec.ClusterIPs {
			if other, taken := holders[ip]; taken {
				t.Errorf("%s has %s, and so has %s", s.Name, ip, other)
			}
			holders[ip] = s.Namespace + "/" + s.Name
		}
	}
	for _, a := range given.Items {
		listed[a.Name] = a.Spec.ParentRef.Namespace + "/" + a.Spec.ParentRef.Name
	}
	if !maps.Equal(holders, listed) {
		t.Errorf("Services have %v, listed are %v", holders, listed)
	}
}

// attempt is one write that a writer tried. Each value is written once.
type attempt struct {
	verb  string // create, update, delete
	value string
	// sure is set when the request was answered and accepted. Without it, the outcome is unknown.
	sure    bool
	version string // of the answer
}

func (a attempt) String() string {
	return fmt.Sprintf("%s %s sure=%v version=%s", a.verb, a.value, a.sure, a.version)
}

type model struct {
	client    dynamic.Interface
	namespace string
	tasks     sync.WaitGroup

	mu      sync.Mutex
	logs    map[string][]attempt // by resource/name
	counted int                  // additions to the shared counter that were acknowledged
	unsure  int                  // ... and those with an unknown outcome
}

func (m *model) note(kind schema.GroupVersionResource, name string, a attempt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := kind.Resource + "/" + name
	m.logs[key] = append(m.logs[key], a)
}

// document is an object that holds a value.
func document(kind schema.GroupVersionResource, name, value string) *unstructured.Unstructured {
	o := map[string]any{
		"apiVersion": "v1", "kind": map[string]string{"configmaps": "ConfigMap", "services": "Service"}[kind.Resource],
		"metadata": map[string]any{"name": name, "annotations": map[string]any{"value": value}},
	}
	if kind.Resource == "services" {
		o["spec"] = map[string]any{"ports": []any{map[string]any{"port": int64(80)}}}
	}
	return &unstructured.Unstructured{Object: o}
}

func valueOf(o *unstructured.Unstructured) string { return o.GetAnnotations()["value"] }

// write creates, updates and deletes objects of its own, and adds to the counter of all.
func (m *model) write(ctx context.Context, t *testing.T, number int) {
	random := rand.New(rand.NewPCG(uint64(number), 1))
	kind := modelKinds[number%len(modelKinds)]
	objects := m.client.Resource(kind).Namespace(m.namespace)
	there := map[string]*unstructured.Unstructured{}
	keep := map[string]bool{} // after a delete that may not have been: the next one would be taken for it
	for n := 0; ctx.Err() == nil; n++ {
		if n%8 == 7 {
			m.count(ctx, t)
			continue
		}
		name, value := fmt.Sprintf("w%d-%d", number, random.IntN(modelKeys)), fmt.Sprintf("%d.%d", number, n)
		have, exists := there[name]
		a := attempt{verb: "create", value: value}
		var got *unstructured.Unstructured
		var err error
		// A write that was begun ends, or the test would not know what it did.
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		switch {
		case !exists:
			got, err = objects.Create(within, document(kind, name, value), meta.CreateOptions{})
		case random.IntN(4) == 0 && !keep[name]:
			a.verb = "delete"
			err = objects.Delete(within, name, meta.DeleteOptions{})
		default:
			a.verb = "update"
			changed := have.DeepCopy()
			changed.SetAnnotations(map[string]string{"value": value})
			got, err = objects.Update(within, changed, meta.UpdateOptions{})
		}
		cancel()
		if a.sure = err == nil; a.sure && got != nil {
			a.version = got.GetResourceVersion()
		}
		m.note(kind, name, a)
		keep[name] = a.verb == "delete" && !a.sure
		switch {
		case err == nil && a.verb == "delete":
			delete(there, name)
		case err == nil:
			there[name] = got
		default:
			m.look(ctx, objects, name, there)
		}
	}
}

// look finds out what is there after an answer that did not come.
func (m *model) look(ctx context.Context, objects dynamic.ResourceInterface, name string, there map[string]*unstructured.Unstructured) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), modelRecovery)
	defer cancel()
	for ctx.Err() == nil {
		got, err := objects.Get(ctx, name, meta.GetOptions{})
		switch {
		case err == nil:
			there[name] = got
			return
		case apierrors.IsNotFound(err):
			delete(there, name)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// count adds one to the counter, if no other client did meanwhile.
func (m *model) count(ctx context.Context, t *testing.T) {
	objects := m.client.Resource(modelKinds[0]).Namespace(m.namespace)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	counter, err := objects.Get(ctx, "counter", meta.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = objects.Create(ctx, document(modelKinds[0], "counter", "1"), meta.CreateOptions{})
	case err != nil:
		time.Sleep(50 * time.Millisecond) // real time: a pause between tries
		return                            // nothing was tried
	default:
		n, parseErr := strconv.Atoi(valueOf(counter))
		if parseErr != nil {
			t.Errorf("the counter holds %q", valueOf(counter))
			return
		}
		counter.SetAnnotations(map[string]string{"value": strconv.Itoa(n + 1)})
		_, err = objects.Update(ctx, counter, meta.UpdateOptions{})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		m.counted++
	case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err):
		m.unsure++
	}
}

// change is an event as a watcher saw it.
type change struct {
	kind     watch.EventType
	name     string
	value    string
	version  string
	revision uint64
}

func (c change) String() string {
	return fmt.Sprintf("%s %s %s @%s", c.kind, c.name, c.value, c.version)
}

// watcher follows all objects of a kind, and goes on where it was when the watch ends.
type watcher struct {
	kind     schema.GroupVersionResource
	mu       sync.Mutex
	revision string
	changes  []change
	err      error
}

func (x *watcher) run(ctx context.Context, objects dynamic.ResourceInterface) {
	for ctx.Err() == nil {
		x.mu.Lock()
		from := x.revision
		x.mu.Unlock()
		stream, err := objects.Watch(ctx, meta.ListOptions{ResourceVersion: from, AllowWatchBookmarks: true})
		if err != nil {
			if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
				x.fail(fmt.Errorf("watch from %s: %w", from, err))
				return
			}
			time.Sleep(20 * time.Millisecond)
			continue
		}
		for event := range stream.ResultChan() {
			x.take(event)
		}
	}
}

func (x *watcher) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.err == nil {
		x.err = err
	}
}

func (x *watcher) take(event watch.Event) {
	o, is := event.Object.(*unstructured.Unstructured)
	if err := apierrors.FromObject(event.Object); event.Type == watch.Error && apierrors.HasStatusCause(err, meta.CauseTypeUnexpectedServerResponse) {
		return // the client's own words for a connection that broke
	}
	if event.Type == watch.Error || !is {
		x.fail(fmt.Errorf("event %s: %v", event.Type, event.Object))
		return
	}
	revision, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		x.fail(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	// The version that was seen last of this object comes again, the same but for its computed conditions.
	for _, c := range slices.Backward(x.changes) {
		if c.name == o.GetName() {
			if event.Type == watch.Modified && c.revision == revision && c.kind != watch.Deleted && c.value == valueOf(o) {
				return
			}
			break
		}
	}
	x.revision = o.GetResourceVersion()
	if event.Type != watch.Bookmark {
		x.changes = append(x.changes, change{event.Type, o.GetName(), valueOf(o), o.GetResourceVersion(), revision})
	}
}

// settle waits until every watcher has seen a last object of its kind.
func (m *model) settle(t *testing.T, watchers []*watcher) {
	t.Helper()
	for _, kind := range modelKinds {
		if _, err := m.client.Resource(kind).Namespace(m.namespace).Create(t.Context(), document(kind, "last", "last"), meta.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, modelRecovery, func() error {
		for i, x := range watchers {
			x.mu.Lock()
			n, err := len(x.changes), x.err
			seen := slices.ContainsFunc(x.changes, func(c change) bool { return c.name == "last" })
			x.mu.Unlock()
			if !seen && err == nil {
				return fmt.Errorf("watcher %d of %s has seen %d changes, and not the last", i, x.kind.Resource, n)
			}
		}
		return nil
	})
}

func (m *model) judge(t *testing.T, watchers []*watcher) {
	first := map[string]*watcher{}
	for i, x := range watchers {
		if x.err != nil {
			t.Errorf("watcher %d of %s: %v", i, x.kind.Resource, x.err)
			continue
		}
		for j := 1; j < len(x.changes); j++ {
			if x.changes[j].revision <= x.changes[j-1].revision {
				t.Errorf("watcher %d: %v came after %v", i, x.changes[j], x.changes[j-1])
			}
		}
		one := first[x.kind.Resource]
		if one == nil {
			first[x.kind.Resource] = x
			m.judgeChanges(t, x)
		} else if !slices.Equal(one.changes, x.changes) {
			t.Errorf("two watchers of %s saw different changes: %d and %d", x.kind.Resource, len(one.changes), len(x.changes))
		}
	}
}

// judgeChanges compares what was seen of a kind with what was written, and with what is.
func (m *model) judgeChanges(t *testing.T, x *watcher) {
	seen := map[string][]change{}
	now := map[string]string{}
	for _, c := range x.changes {
		_, exists := now[c.name]
		if want := map[bool]watch.EventType{false: watch.Added, true: watch.Modified}[exists]; c.kind != want && !(exists && c.kind == watch.Deleted) {
			t.Errorf("%v, of an object that was there: %v", c, exists)
		}
		if now[c.name] = c.value; c.kind == watch.Deleted {
			delete(now, c.name)
		}
		seen[c.name] = append(seen[c.name], c)
	}
	list, err := m.client.Resource(x.kind).Namespace(m.namespace).List(t.Context(), meta.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]string{}
	for _, o := range list.Items {
		there[o.GetName()] = valueOf(&o)
	}
	if !maps.Equal(there, now) {
		t.Errorf("%s: the list is %v, the changes lead to %v", x.kind.Resource, there, now)
	}
	written := 0
	for key, log := range m.logs {
		if name, is := strings.CutPrefix(key, x.kind.Resource+"/"); is {
			written += len(log)
			if err := explain(log, seen[name]); err != nil {
				t.Errorf("%s: %v\nwritten: %v\nseen: %v", key, err, log, seen[name])
			}
		}
	}
	t.Logf("%s: %d writes, %d changes seen by each of %d watchers", x.kind.Resource, written, len(x.changes), modelWatchers)
	if x.kind == modelKinds[0] {
		m.judgeCounter(t, seen["counter"])
	}
}

// explain matches what was seen of an object with what was tried, in order: what was
// acknowledged must have been seen, what is unsure may have been.
func explain(log []attempt, seen []change) error {
	verbs := map[watch.EventType]string{watch.Added: "create", watch.Modified: "update", watch.Deleted: "delete"}
	for _, a := range log {
		is := len(seen) > 0 && verbs[seen[0].kind] == a.verb && (a.verb == "delete" || seen[0].value == a.value)
		switch {
		case is && a.version != "" && seen[0].version != a.version:
			return fmt.Errorf("%v was acknowledged with another version than %v", a, seen[0])
		case is:
			seen = seen[1:]
		case a.sure:
			return fmt.Errorf("%v was acknowledged and not seen", a)
		}
	}
	if len(seen) != 0 {
		return fmt.Errorf("%v was seen and nobody did it, or it was seen twice", seen[0])
	}
	return nil
}

// judgeCounter: nothing that was added is lost, nothing was added twice.
func (m *model) judgeCounter(t *testing.T, seen []change) {
	for i, c := range seen {
		if c.value != strconv.Itoa(i+1) {
			t.Errorf("change %d of the counter is %v", i+1, c)
		}
	}
	if n := len(seen); n < m.counted || n > m.counted+m.unsure {
		t.Errorf("the counter stands at %d: %d additions were acknowledged, %d are unsure", n, m.counted, m.unsure)
	}
	t.Logf("counter: %d, %d acknowledged, %d unsure", len(seen), m.counted, m.unsure)
}
