package alloc

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// modelOperations is how many random operations each model test does in the quick run.
const modelOperations = 150_000

// The allocators against the most naive thing that could be right: a map of who holds
// what. After each operation both must agree, and now and then an allocator that is
// rebuilt from the holders must be the same one.
func TestAddressesAgainstModel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	a := mustAddresses(t, "10.0.0.0/24")
	model := map[netip.Addr]string{}
	for op := range modelOperations {
		owner := fmt.Sprint("ns/svc-", random.IntN(400))
		addr := plus(netip.MustParseAddr("9.255.255.250"), random.Uint64N(270))
		switch random.IntN(7) {
		case 0, 1:
			got, err := a.Next(owner, nil)
			checkNextAddress(t, a, model, got, err)
			if err == nil {
				model[got] = owner
			}
		case 2, 3:
			err := a.Take(addr, owner)
			holder, held := model[addr]
			free := !held && a.Contains(addr)
			if want := free || holder == owner; want != (err == nil) {
				t.Fatalf("operation %d: Take(%s, %s) gave %v; holder %q", op, addr, owner, err, holder)
			}
			if err == nil {
				model[addr] = owner
			}
		case 4:
			if err := a.Hold(addr, owner); err == nil {
				if holder, held := model[addr]; held && holder != owner {
					t.Fatalf("operation %d: %s is held by %s and was given to %s", op, addr, holder, owner)
				}
				model[addr] = owner
			}
		default:
			a.Release(addr, owner)
			if holder, held := model[addr]; held && random.IntN(2) == 0 {
				a.Release(addr, holder)
				delete(model, addr)
			} else if holder == owner {
				delete(model, addr)
			}
		}
		if op%5000 == 0 {
			a = rebuiltAddresses(t, a, model)
		}
	}
}

func checkNextAddress(t *testing.T, a *Addresses, model map[netip.Addr]string, got netip.Addr, err error) {
	t.Helper()
	if holder, held := model[got]; held {
		t.Fatalf("%s was given although %s holds it", got, holder)
	}
	low, high := 0, 0
	for addr := range model {
		if !a.Contains(addr) {
			continue
		}
		if a.offset(addr) < a.band {
			low++
		} else {
			high++
		}
	}
	switch {
	case errors.Is(err, ErrFull):
		if low+high != 254 {
			t.Fatalf("full with %d of 254 held", low+high)
		}
	case err != nil:
		t.Fatal(err)
	case a.offset(got) < a.band && high != 238:
		t.Fatalf("%s comes from the lower band with %d of 238 of the upper held", got, high)
	}
}

func rebuiltAddresses(t *testing.T, a *Addresses, model map[netip.Addr]string) *Addresses {
	t.Helper()
	if !maps.Equal(a.Holders(), model) {
		t.Fatal("holders differ from the model")
	}
	rebuilt := mustAddresses(t, a.Prefix().String())
	for addr, owner := range model {
		if err := rebuilt.Hold(addr, owner); err != nil {
			t.Fatal(err)
		}
	}
	for n := range a.last + 1 {
		x, okX := a.used.nextAbsent(n)
		y, okY := rebuilt.used.nextAbsent(n)
		if x != y || okX != okY {
			t.Fatalf("next absent from %d: %d %t, rebuilt %d %t", n, x, okX, y, okY)
		}
	}
	return rebuilt
}

func TestPortsAgainstModel(t *testing.T) {
	for _, space := range []Space{PerProtocol, Shared} {
		random := rand.New(rand.NewPCG(3, 4))
		p := mustPorts(t, 30000, 30099, space)
		model := map[Port]string{}
		rival := func(port Port, owner string) bool {
			for _, protocol := range []string{"TCP", "UDP", "SCTP"} {
				holder, held := model[Port{protocol, port.Number}]
				if held && holder != owner && (space == Shared || protocol == port.Protocol) {
					return true
				}
			}
			return false
		}
		for op := range modelOperations {
			owner := fmt.Sprint("ns/svc-", random.IntN(60))
			protocols := [][]string{{"TCP"}, {"UDP"}, {"TCP", "UDP"}, {"SCTP"}}[random.IntN(4)]
			port := Port{protocols[0], uint16(29995 + random.IntN(110))}
			switch random.IntN(5) {
			case 0:
				n, err := p.Next(protocols, owner, owner)
				if err != nil {
					checkPortsFull(t, p, rival, protocols)
					continue
				}
				for _, protocol := range protocols {
					if _, held := model[Port{protocol, n}]; held || rival(Port{protocol, n}, owner) || !p.Contains(n) {
						t.Fatalf("operation %d: %s port %d was given although it is held", op, protocol, n)
					}
					model[Port{protocol, n}] = owner
				}
			case 1, 2:
				err := p.Take(port, owner)
				_, held := model[port]
				if want := !rival(port, owner) && (held || p.Contains(port.Number)); want != (err == nil) {
					t.Fatalf("operation %d: Take(%v, %s) gave %v", op, port, owner, err)
				}
				if err == nil {
					model[port] = owner
				}
			default:
				holder := model[port]
				p.Release(port, holder)
				delete(model, port)
			}
			if op%5000 == 0 && !maps.Equal(p.Holders(), model) {
				t.Fatalf("operation %d: holders differ from the model", op)
			}
		}
	}
}

func checkPortsFull(t *testing.T, p *Ports, rival func(Port, string) bool, protocols []string) {
	t.Helper()
	for n := uint16(p.first); n <= uint16(p.last); n++ {
		free := !slices.ContainsFunc(protocols, func(protocol string) bool {
			return rival(Port{protocol, n}, "nobody/at-all")
		})
		if free {
			t.Fatalf("said to be full, but %d is free on %v", n, protocols)
		}
	}
}

func TestPoolsAgainstModel(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	p := mustPools(t, pool("198.51.100.0", "198.51.100.15"), pool("203.0.113.4", "203.0.113.9"))
	model := map[netip.Addr]map[string]Request{}
	for op := range modelOperations {
		addr := plus(netip.MustParseAddr("198.51.100.0"), random.Uint64N(18))
		request := Request{
			Owner:      fmt.Sprint("ns/svc-", random.IntN(30)),
			SharingKey: []string{"", "", "k", "l"}[random.IntN(4)],
			Ports:      []Port{{"TCP", uint16(1 + random.IntN(4))}},
		}
		switch random.IntN(4) {
		case 0:
			got, err := p.Next(true, request, nil)
			if err == nil {
				modelRequest(t, model, got, request)
			}
		case 1:
			request.Requested = []netip.Addr{addr}
			if err := p.Take(addr, request); err == nil {
				modelRequest(t, model, addr, request)
			} else if len(model[addr]) == 0 && p.Contains(addr) {
				t.Fatalf("operation %d: nobody holds %s: %v", op, addr, err)
			}
		default:
			p.Release(addr, request.Owner)
			delete(model[addr], request.Owner)
		}
		if op%1000 == 0 {
			holders := p.Holders()
			for addr, requests := range model {
				if want := slices.Sorted(maps.Keys(requests)); !slices.Equal(holders[addr], want) {
					t.Fatalf("operation %d: %s is held by %v, want %v", op, addr, holders[addr], want)
				}
			}
		}
	}
}

// modelRequest registers a request that was accepted, after checking it against all others.
func modelRequest(t *testing.T, model map[netip.Addr]map[string]Request, addr netip.Addr, request Request) {
	t.Helper()
	for owner, other := range model[addr] {
		asked := slices.Contains(request.Requested, addr) && slices.Contains(other.Requested, addr)
		keyed := request.SharingKey != "" && request.SharingKey == other.SharingKey
		if owner != request.Owner && (request.Ports[0] == other.Ports[0] || !asked && !keyed) {
			t.Fatalf("%s: %+v and %+v may not share it", addr, request, other)
		}
	}
	if model[addr] == nil {
		model[addr] = map[string]Request{}
	}
	model[addr][request.Owner] = request
}
