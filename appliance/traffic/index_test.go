package traffic

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"svcctl.io/svcctl/appliance/conntrack"
	"svcctl.io/svcctl/nft"
)

// text is all that an index has, sorted.
func (x *index) text() (lines []string) {
	name := func(p *Port) string { return fmt.Sprintf("%s %v of %s", p.Key(), p.Family, p.row.key) }
	for _, r := range x.rows {
		line := fmt.Sprint("row ", r.key, " ", r.service, " ", r.name)
		for i := range r.ports {
			line += fmt.Sprint("; ", name(&r.ports[i]), " ", r.ports[i].Frontends)
		}
		lines = append(lines, line) // in their order
	}
	at := len(lines)
	for service, ports := range x.services {
		lines = append(lines, fmt.Sprint("service ", service, " ", len(ports)))
	}
	for fe, p := range x.at.Of {
		lines = append(lines, fmt.Sprint("at ", fe, " ", name(p)))
	}
	for addr, list := range x.at.Ranges {
		for _, fe := range list {
			lines = append(lines, fmt.Sprint("range of ", addr, " ", fe))
		}
	}
	for addr := range x.egress.addresses {
		lines = append(lines, fmt.Sprint("egress ", addr))
	}
	for source, p := range x.egress.sources {
		lines = append(lines, fmt.Sprint("source ", source, " ", name(p)))
	}
	slices.Sort(lines[at:])
	for _, p := range x.egress.ports {
		lines = append(lines, "egress "+name(p))
	}
	return lines
}

// After any changes an index is as one that is made from nothing, and earlier looks have the rows that they had.
func TestIndexFollowsChanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{3, 40, 1000} {
		services := map[string][]Port{}
		owner := map[conntrack.Frontend]string{} // a frontend is of one Service at a time
		make := func(service string) (ports []Port) {
			for n := range rng.IntN(4) {
				name := ""
				if n > 0 || rng.IntN(2) == 0 {
					name = fmt.Sprintf("p%d", n)
				}
				for _, family := range []nft.Family{nft.IPv6, nft.IPv4}[rng.IntN(2):] {
					p := Port{Service: service, Name: name, Family: family, Protocol: nft.TCP}
					ranges := rng.IntN(5) == 0
					for range rng.IntN(3) {
						fe := conntrack.Frontend{Addr: netip.AddrFrom4([4]byte{10, 96, byte(rng.IntN(1 + size/200)), byte(rng.IntN(200))}), Family: family, Protocol: nft.TCP, Port: uint16(80 + 10*rng.IntN(2))}
						if ranges {
							fe.Last = fe.Port + 5
						}
						if owner[fe] == "" {
							owner[fe] = service
							p.Frontends = append(p.Frontends, fe)
						}
					}
					if rng.IntN(20) == 0 {
						p.egress = &nft.Egress{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(rng.IntN(9))}), Sources: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(rng.IntN(2)), byte(rng.IntN(50))})}}
					}
					ports = append(ports, p)
				}
			}
			return ports
		}
		some := func(n int) map[string][]Port {
			changed := map[string][]Port{}
			for range n {
				changed[fmt.Sprintf("default/s%d", rng.IntN(size))] = nil
			}
			maps.DeleteFunc(owner, func(_ conntrack.Frontend, of string) bool { _, is := changed[of]; return is })
			for service := range changed {
				changed[service] = make(service)
			}
			return changed
		}
		follow := func(changed map[string][]Port) {
			for service, ports := range changed {
				if services[service] = slices.Clone(ports); len(ports) == 0 {
					delete(services, service)
				}
			}
		}
		first := some(2 * size)
		follow(first)
		maps.DeleteFunc(first, func(_ string, ports []Port) bool { return len(ports) == 0 })
		x := indexOf(first)
		for step := range 24 {
			looked := x.rows
			before := (&index{rows: looked}).text()
			changed := some(1 + rng.IntN(1+size/10))
			if step%20 == 19 { // all are gone
				clear(changed)
				for service := range services {
					changed[service] = nil
				}
				clear(owner)
			}
			follow(changed)
			x.change(changed)
			fresh := map[string][]Port{}
			for service, ports := range services {
				fresh[service] = slices.Clone(ports)
			}
			if got, want := x.text(), indexOf(fresh).text(); !slices.Equal(got, want) {
				for i := range min(len(got), len(want)) {
					if got[i] != want[i] {
						t.Fatalf("%d Services, step %d, line %d of %d, %d: %s\nwant %s", size, step, i, len(got), len(want), got[i], want[i])
					}
				}
				t.Fatalf("%d Services, step %d: %d lines, want %d", size, step, len(got), len(want))
			}
			if after := (&index{rows: looked}).text(); !slices.Equal(before, after) {
				t.Fatalf("%d Services, step %d: the rows of an earlier look changed", size, step)
			}
		}
	}
}
