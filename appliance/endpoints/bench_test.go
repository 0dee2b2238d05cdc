package endpoints

import (
	"fmt"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// indexed answers as the store does, without looking at everything.
type indexed struct {
	*world
	services map[string]*object.Service
	slices   map[string][]*object.EndpointSlice
	legacy   map[string]*object.Endpoints
	pods     map[string]*object.Pod
	selected map[string][]*object.Pod // by Service
}

func (x *indexed) Service(key string) (*object.Service, []*object.EndpointSlice, *object.Endpoints) {
	return x.services[key], x.slices[key], x.legacy[key]
}
func (x *indexed) Pod(key string) *object.Pod { return x.pods[key] }
func (x *indexed) Selected(namespace string, selector map[string]string) []*object.Pod {
	return x.selected[namespace+"/"+selector["app"]]
}
func (x *indexed) Selecting(namespace string, labels map[string]string) []string {
	return []string{namespace + "/" + labels["app"]}
}

// populate makes Services with Pods each, and lets the controller do its work.
func populate(tb testing.TB, services, podsEach int) *indexed {
	w := newWorld(tb)
	x := &indexed{
		world: w, services: map[string]*object.Service{}, slices: map[string][]*object.EndpointSlice{},
		legacy: map[string]*object.Endpoints{}, pods: map[string]*object.Pod{}, selected: map[string][]*object.Pod{},
	}
	var all Changes
	for i := range services {
		name := fmt.Sprint("s", i)
		key := "default/" + name
		w.service(name)
		x.services[key] = w.objects[object.Ref{Kind: object.KindService, Namespace: "default", Name: name}].(*object.Service)
		for j := range podsEach {
			number := i*podsEach + j
			w.pod(name, number)
			ref := object.Ref{Kind: object.KindPod, Namespace: "default", Name: podName(name, number)}
			x.pods[ref.Key()] = w.objects[ref].(*object.Pod)
			x.selected[key] = append(x.selected[key], x.pods[ref.Key()])
			all.Pods = append(all.Pods, ref.Key())
		}
		all.Services = append(all.Services, key)
	}
	x.write(w.c.Update(x, all))
	return x
}

func (x *indexed) write(batch Batch) {
	for _, o := range batch.Puts {
		ref := object.RefOf(o)
		x.objects[ref], x.ours[ref] = o, true
		switch o := o.(type) {
		case *object.EndpointSlice:
			key := ref.Namespace + "/" + o.Metadata.Labels[object.LabelServiceName]
			found := false
			for i, old := range x.slices[key] {
				if old.Metadata.Name == ref.Name {
					x.slices[key][i], found = o, true
				}
			}
			if !found {
				x.slices[key] = append(x.slices[key], o)
			}
		case *object.Endpoints:
			x.legacy[ref.Key()] = o
		}
	}
}

// flip makes a Pod ready or not.
func (x *indexed) flip(key string) {
	pod := object.DeepCopy(x.pods[key])
	if pod.Ready() {
		unready(pod)
	} else {
		pod.Status.Conditions = nil
	}
	x.pods[key] = pod
}

// BenchmarkOnePodFlips is the work for one Pod, and that the controller hears of its own
// writes. It is that of the slice the Pod is in and of the Endpoints object, however many
// others there are.
func BenchmarkOnePodFlips(b *testing.B) {
	for _, size := range []struct{ services, podsEach int }{{1, 50}, {100, 50}, {1000, 50}, {50, 1000}, {1, 50_000}} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.podsEach), func(b *testing.B) {
			x := populate(b, size.services, size.podsEach)
			key := "default/" + podName("s0", 7)
			b.ReportAllocs()
			for b.Loop() {
				x.flip(key)
				batch := x.c.Update(x, Changes{Pods: []string{key}})
				if len(batch.Puts) == 0 || len(batch.Puts) > 2 {
					b.Fatal(describe(batch))
				}
				x.write(batch)
				if again := x.c.Update(x, Changes{Services: []string{"default/s0"}}); !again.Empty() {
					b.Fatal(describe(again))
				}
			}
		})
	}
}

// BenchmarkManyPodsFlip is a fifth of 50,000 Pods at once.
func BenchmarkManyPodsFlip(b *testing.B) {
	x := populate(b, 1000, 50)
	var changes Changes
	for i := range 10_000 {
		number := i * 5
		changes.Pods = append(changes.Pods, "default/"+podName(fmt.Sprint("s", number/50), number))
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, key := range changes.Pods {
			x.flip(key)
		}
		x.write(x.c.Update(x, changes))
	}
}

// BenchmarkStart is a start over 50,000 Pods of 1,000 Services, with nothing to write.
func BenchmarkStart(b *testing.B) {
	x := populate(b, 1000, 50)
	all := x.c.Known()
	for b.Loop() {
		x.c = New(facts)
		if batch := x.c.Update(x, all); !batch.Empty() {
			b.Fatal(describe(batch))
		}
	}
}

// TestOnePodCostsTheSameAmongMany counts allocations, which no machine's mood changes.
func TestOnePodCostsTheSameAmongMany(t *testing.T) {
	measure := func(services int) float64 {
		x := populate(t, services, 20)
		key := "default/" + podName("s0", 7)
		return testing.AllocsPerRun(20, func() {
			x.flip(key)
			x.write(x.c.Update(x, Changes{Pods: []string{key}}))
		})
	}
	if few, many := measure(2), measure(400); many > few*1.1 {
		t.Errorf("one Pod of 40 costs %v allocations, one of 8,000 %v", few, many)
	}
}
