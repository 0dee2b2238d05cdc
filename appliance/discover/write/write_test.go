package write

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/store/object"
)

var web = Claim{Namespace: "default", Service: "web", UID: "u1", Port: "http", Protocol: "TCP", From: "consul:web"}

// store applies changed slices to stored ones, as the API has them.
func store(t *testing.T, stored map[string]*Slice, changed []*Slice) {
	t.Helper()
	for _, s := range changed {
		if len(s.Endpoints) == 0 {
			delete(stored, s.Name)
			continue
		}
		text, err := json.Marshal(s.Object())
		if err != nil {
			t.Fatal(err)
		}
		o := &object.EndpointSlice{}
		if err := json.Unmarshal(text, o); err != nil {
			t.Fatal(err)
		}
		o.TypeMeta = object.TypeMeta{Kind: object.KindEndpointSlice, APIVersion: "discovery.k8s.io/v1"}
		if errs := object.Validate(o, object.Options{}); len(errs) > 0 {
			t.Fatalf("%s: %v", s.Name, errs)
		}
		read := Read(o)
		if !read.Equal(s) {
			t.Fatalf("%+v is read as %+v", s, read)
		}
		stored[s.Name] = read
	}
}

func values(m map[string]*Slice) (all []*Slice) {
	for _, s := range m {
		all = append(all, s)
	}
	return all
}

// Slices have at most 100 endpoints, those that stay keep their slice, and a second arrangement changes nothing.
func Test974_slices_are_small_and_places_stable(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	stored, places := map[string]*Slice{}, map[string]string{}
	for step := range 300 {
		n := []int{0, 1, 5, 99, 100, 101, 250, 3000}[random.IntN(8)]
		var want []provider.Endpoint
		for i := range n {
			e := provider.Endpoint{Address: fmt.Sprintf("10.%d.%d.1", i/250, i%250), Port: 8080, Node: "node", State: provider.State(random.IntN(3))}
			if i%2 == 1 {
				e.Address = fmt.Sprintf("2001:db8::%x", i)
			}
			if random.IntN(200) == 0 {
				e.Weight, e.Priority = 3, 2
			}
			want = append(want, e)
		}
		changed := Arrange(web, want, values(stored))
		store(t, stored, changed)
		now, moved := map[string]string{}, 0
		for name, s := range stored {
			if len(s.Endpoints) > 100 {
				t.Fatalf("step %d: %d endpoints in a slice", step, len(s.Endpoints))
			}
			for _, e := range s.Endpoints {
				key := fmt.Sprint(s.group, e.Address)
				if now[key] != "" {
					t.Fatalf("step %d: %s is in two slices", step, key)
				}
				now[key] = name
				if before := places[key]; before != "" && before != name {
					moved++
				}
			}
		}
		if len(now) != n || moved > 0 {
			t.Fatalf("step %d: %d endpoints in slices, want %d; %d moved", step, len(now), n, moved)
		}
		if again := Arrange(web, want, values(stored)); len(again) > 0 {
			t.Fatalf("step %d: the same endpoints change %d slices", step, len(again))
		}
		places = now
	}
}

func TestOneEndpointChangesOneSlice(t *testing.T) {
	stored := map[string]*Slice{}
	var want []provider.Endpoint
	for i := range 1000 {
		want = append(want, provider.Endpoint{Address: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1), Port: 80})
	}
	store(t, stored, Arrange(web, want, nil))
	if len(stored) != 10 {
		t.Errorf("1000 endpoints are in %d slices", len(stored))
	}
	if changed := Arrange(web, want[1:], values(stored)); len(changed) != 1 {
		t.Errorf("one endpoint less changes %d slices", len(changed))
	}
	other := web
	other.UID = "u2"
	if changed := Arrange(other, want, values(stored)); len(changed) != 10 {
		t.Errorf("a Service that was made again changes %d slices", len(changed))
	}
}
