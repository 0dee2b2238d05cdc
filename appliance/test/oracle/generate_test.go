package oracle

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// TestGeneratedWorldsAreValid: what the product would refuse proves nothing about it.
func TestGeneratedWorldsAreValid(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		first := Generate(r)
		for _, w := range []*World{first, first.Next(r)} {
			var all []object.Object
			for _, o := range w.Services {
				all = append(all, o)
			}
			for _, o := range w.Slices {
				all = append(all, o)
			}
			for _, o := range w.Endpoints {
				all = append(all, o)
			}
			refs := map[object.Ref]bool{}
			for _, o := range all {
				if errs := object.Validate(o, object.Options{}); len(errs) > 0 {
					t.Fatalf("seed %d: %v: %v\n%v", seed, object.RefOf(o), errs, w)
				}
				if refs[object.RefOf(o)] {
					t.Fatalf("seed %d: %v is there twice", seed, object.RefOf(o))
				}
				refs[object.RefOf(o)] = true
			}
			for i, a := range w.Services {
				if slices.ContainsFunc(w.Services[i+1:], func(b *object.Service) bool { return clash(a, b) }) {
					t.Fatalf("seed %d: two Services hold the same\n%v", seed, w)
				}
			}
		}
	}
}

func TestSameSeedSameWorld(t *testing.T) {
	one := Generate(rand.New(rand.NewPCG(7, 0)))
	two := Generate(rand.New(rand.NewPCG(7, 0)))
	if one.String() != two.String() {
		t.Errorf("%v\n%v", one, two)
	}
}

// TestHold: a World that holds its frontends decides as before, and a copy of it that is changed decides by its own Services.
func TestHold(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 0))
		w := Generate(r)
		fixed, same := *w, *w
		fixed.Hold()
		changed := fixed
		changed.Services, same.Services = w.Services[:len(w.Services)/2], w.Services[:len(w.Services)/2]
		for _, p := range w.Packets(r, 40) {
			for range 2 { // asking changes nothing
				if want := w.Decide(p); !slices.Equal(fixed.Decide(p), want) {
					t.Fatalf("seed %d: %v: %v, want %v\n%v", seed, p, fixed.Decide(p), want, w)
				}
			}
			if want := same.Decide(p); !slices.Equal(changed.Decide(p), want) {
				t.Fatalf("seed %d: a changed copy: %v: %v, want %v\n%v", seed, p, changed.Decide(p), want, &same)
			}
		}
	}
}

func TestShrinkKeepsWhatMatters(t *testing.T) {
	var w *World
	hasLocal := func(w *World) bool {
		return slices.ContainsFunc(w.Services, func(s *object.Service) bool { return s.Spec.ExternalTrafficPolicy == object.PolicyLocal })
	}
	for seed := uint64(0); w == nil || !hasLocal(w) || len(w.Services) < 3; seed++ {
		w = Generate(rand.New(rand.NewPCG(seed, 0)))
	}
	before := w.String()
	small := w.Shrink(hasLocal)
	if w.String() != before {
		t.Error("the world itself was changed")
	}
	if !hasLocal(small) || len(small.Services) != 1 || len(small.Slices) != 0 || strings.Contains(small.String(), "--") {
		t.Errorf("not the smallest:\n%v", small)
	}
}
