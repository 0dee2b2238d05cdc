package endpoints

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// step changes a few random things: mostly Pods, sometimes Services and what others do.
func (w *world) step(r *rand.Rand) {
	service := fmt.Sprint("s", r.IntN(3))
	switch r.IntN(12) {
	case 0:
		w.service(service, randomService(r))
	case 1:
		w.remove(object.Ref{Kind: object.KindService, Namespace: "default", Name: service})
	case 2:
		if r.IntN(2) == 0 {
			w.handmade(service, []string{podIP(r.IntN(9)), podIP(r.IntN(9))}, nil)
		} else if ref := (object.Ref{Kind: object.KindEndpoints, Namespace: "default", Name: service}); w.Holder(ref) == Others {
			w.remove(ref)
		}
	case 3:
		w.interfere(r)
	default:
		for range 1 + r.IntN(40) {
			number := r.IntN(300)
			if r.IntN(3) == 0 {
				w.removePod(service, number)
			} else {
				w.pod(service, number, randomPod(r, number))
			}
		}
	}
}

func randomService(r *rand.Rand) func(*object.Service) {
	return func(svc *object.Service) {
		for _, change := range []func(*object.Service){
			headless, selectorless, dual, target("http"), distribute(object.PreferSameZone),
			func(svc *object.Service) { svc.Spec.PublishNotReadyAddresses = true },
			func(svc *object.Service) { svc.Metadata.Labels["team"] = "red" },
			func(svc *object.Service) { svc.Spec.ExternalIPs = []string{podIP(r.IntN(300))} },
			func(svc *object.Service) { svc.Spec.Selector = map[string]string{"tier": "back"} },
		} {
			if r.IntN(4) == 0 {
				change(svc)
			}
		}
	}
}

func randomPod(r *rand.Rand, number int) func(*object.Pod) {
	return func(p *object.Pod) {
		for _, change := range []func(*object.Pod){
			unready, ending, noAddress, phase(object.PodFailed), label("tier", "back"), on("gw1"),
			port("http", int32(80+r.IntN(2)), ""), ips(podIP(number), fmt.Sprintf("fd00::%x", number+1)), ips(podIP(r.IntN(300))),
		} {
			if r.IntN(5) == 0 {
				change(p)
			}
		}
	}
}

// interfere changes slices as other writers do: it takes a name, removes one, or spoils one.
func (w *world) interfere(r *rand.Rand) {
	var refs []object.Ref
	for ref := range w.objects {
		if ref.Kind == object.KindEndpointSlice {
			refs = append(refs, ref)
		}
	}
	if len(refs) == 0 {
		return
	}
	slices.SortFunc(refs, compareRefs)
	ref := refs[r.IntN(len(refs))]
	o := object.DeepCopy(w.objects[ref]).(*object.EndpointSlice)
	switch {
	case w.Holder(ref) == Others, r.IntN(3) == 0:
		w.remove(ref)
	case r.IntN(2) == 0:
		o.Endpoints = nil
		w.remove(ref)
		w.put(o, false)
	default:
		o.Endpoints = append(o.Endpoints, o.Endpoints...)
		w.put(o, true)
	}
}

// check holds the slices of all Services against what they must be, read from the
// objects by a second, plain implementation.
func (w *world) check() error {
	for ref, o := range w.objects {
		svc, ok := o.(*object.Service)
		if !ok || len(svc.Spec.Selector) == 0 {
			continue
		}
		want := map[string]string{} // by Pod and family
		for _, pod := range w.Selected("default", svc.Spec.Selector) {
			if pod.Status.Phase == object.PodFailed || pod.Status.Phase == object.PodSucceeded {
				continue
			}
			for _, ip := range pod.Status.PodIPs {
				family := object.IPv4
				if strings.Contains(ip.IP, ":") {
					family = object.IPv6
				}
				if !slices.Contains(svc.Spec.IPFamilies, family) || w.isVIP(ip.IP) {
					continue
				}
				number := int32(8080)
				if svc.Spec.Ports[0].TargetPort.IsString {
					number = 0
					for _, container := range pod.Spec.Containers {
						number = container.Ports[0].ContainerPort
					}
				}
				ready := svc.Spec.PublishNotReadyAddresses || len(pod.Status.Conditions) == 0 && pod.Metadata.DeletionTimestamp == nil
				want[pod.Metadata.Name+" "+family] = fmt.Sprintf("%s %d %t", ip.IP, number, ready)
			}
		}
		if err := w.checkSlices(ref.Key(), svc, want); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
	}
	return nil
}

func (w *world) isVIP(ip string) bool {
	for _, o := range w.objects {
		if svc, ok := o.(*object.Service); ok && !svc.Headless() && slices.Contains(svc.Spec.ExternalIPs, ip) {
			return true
		}
	}
	return false
}

func (w *world) checkSlices(key string, svc *object.Service, want map[string]string) error {
	_, parts, _ := w.Service(key)
	inFamily := map[string]int{}
	for _, part := range parts {
		if w.Holder(object.RefOf(part)) != Ours {
			continue
		}
		if len(part.Endpoints) > maxEndpoints {
			return fmt.Errorf("slice %s has %d endpoints", part.Metadata.Name, len(part.Endpoints))
		}
		inFamily[part.AddressType]++
		if len(part.Endpoints) == 0 && len(part.Ports) > 0 {
			return fmt.Errorf("slice %s is empty", part.Metadata.Name)
		}
		number := int32(0)
		if len(part.Ports) > 0 {
			number = *part.Ports[0].Port
		}
		for _, e := range part.Endpoints {
			id := e.TargetRef.Name + " " + part.AddressType
			if got := fmt.Sprintf("%s %d %t", e.Addresses[0], number, *e.Conditions.Ready); want[id] != got {
				return fmt.Errorf("slice %s has %s as %s, want %q", part.Metadata.Name, id, got, want[id])
			}
			delete(want, id)
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("missing %v", want)
	}
	for _, family := range families {
		if (inFamily[family] > 0) != slices.Contains(svc.Spec.IPFamilies, family) {
			return fmt.Errorf("%d slices of %s", inFamily[family], family)
		}
	}
	return nil
}

// seeds is how many seeds, or steps, of a random test run: all of them in the lane SEEDED of the Makefile, a sixteenth of them with -short, a quarter otherwise.
func seeds(all uint64) uint64 {
	if os.Getenv("SVCCTL_SEEDS") == "all" {
		return all
	}
	if testing.Short() {
		return (all + 15) / 16
	}
	return (all + 3) / 4
}

// TestRandomChanges: whatever happens, the slices are right; a controller that is started
// anew finds nothing to do; two that saw the same wrote the same; and a fork writes what its origin does, and leaves that alone.
func TestRandomChanges(t *testing.T) {
	for seed := range seeds(8) {
		a, b := newWorld(t), newWorld(t)
		ra, rb := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 1))
		for step := range 40 {
			for range 1 + step%3 {
				a.step(ra)
				b.step(rb)
			}
			if step%7 == 3 { // b's disk is full for a while
				b.c.Forget(b.c.Update(b, b.take()))
			}
			batch := a.update()
			foreseen := b.c.Fork().Update(b, Changes{slices.Clone(b.dirty.Services), slices.Clone(b.dirty.Pods)})
			if done := b.update(); describe(done) != describe(foreseen) {
				t.Fatalf("seed %d step %d: a fork would write\n%s\nand written is\n%s", seed, step, describe(foreseen), describe(done))
			}
			b.update() // what it wrote is no change of the next step
			if err := a.check(); err != nil {
				t.Fatalf("seed %d step %d: %v\n%s", seed, step, err, describe(batch))
			}
			if again := a.update(); !again.Empty() {
				t.Fatalf("seed %d step %d: what it wrote itself makes it write\n%s", seed, step, describe(again))
			}
			if x, y := fmt.Sprint(a.parts("s0"), a.parts("s1"), a.parts("s2")), fmt.Sprint(b.parts("s0"), b.parts("s1"), b.parts("s2")); x != y {
				t.Fatalf("seed %d step %d: one has %s\nthe other %s", seed, step, x, y)
			}
			if x, y := fmt.Sprint(a.c.Problems()), fmt.Sprint(b.c.Problems()); x != y {
				t.Fatalf("seed %d step %d: one sees %s\nthe other %s", seed, step, x, y)
			}
			problems := fmt.Sprint(a.c.Problems())
			if a.restart(); fmt.Sprint(a.c.Problems()) != problems {
				t.Fatalf("seed %d step %d: before a restart %s\nafter it %v", seed, step, problems, a.c.Problems())
			}
		}
	}
}

// TestChangesTouchFewSlices: beside the slices that Pods left or changed in, at most one
// more of each group is written, and only as many new ones as are needed.
func TestChangesTouchFewSlices(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	w := newWorld(t)
	w.service("web")
	for range seeds(200) {
		before := w.placesOf("web")
		needed := map[string]bool{}
		arriving := 0
		for range 1 + r.IntN(120) {
			number := r.IntN(900)
			place, had := before[podIP(number)]
			switch r.IntN(3) {
			case 0:
				w.removePod("web", number)
				if had {
					needed[place] = true
				}
			case 1:
				w.pod("web", number, unready)
			default:
				w.pod("web", number)
			}
			if had {
				needed[place] = true
			} else {
				arriving++
			}
		}
		names := map[string]bool{}
		for _, place := range before {
			names[place] = true
		}
		w.update()
		more, fresh := 0, 0
		for _, o := range w.last.Puts {
			switch name := o.GetMeta().Name; {
			case name == "web", needed[name]: // the Endpoints object; a slice that had to change
			case names[name]:
				more++
			default:
				fresh++
			}
		}
		if most := (arriving + maxEndpoints - 1) / maxEndpoints; more > 1 || fresh > most {
			t.Fatalf("%d slices more than needed and %d new ones are written, for %d arrivals", more, fresh, arriving)
		}
		for address, place := range w.placesOf("web") {
			if old := before[address]; old != "" && old != place {
				t.Fatalf("%s has moved from %s to %s", address, old, place)
			}
		}
	}
}
