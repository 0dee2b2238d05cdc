package nft

import (
	"net/netip"
)

// A box that takes over another one's addresses has none of its connection tracking entries, and with
// net.netfilter.nf_conntrack_tcp_loose=1 (the default) makes one of any segment of TCP in mid-stream. Of a client's it
// makes the right one, if the endpoint is picked by a hash of the client, as on the other box. Of an endpoint's it
// makes one that leads to the client from the endpoint's own address, which the client resets. Adopting translates
// such a segment's source to the frontend, so that the entry is the other one's mirror: what the client sends next is
// a reply of it and goes to the endpoint.
//
// An endpoint's segment does not say by which frontend the client came. So an endpoint is adopted for one frontend,
// and for none where two ask for it.

// addAdopted notes the endpoints that are adopted for a frontend.
func (p *compiledPort) addAdopted(f *fragment, fe *Frontend) {
	if !fe.Adopt {
		return
	}
	frontend := f.keep(Key(AddrPortData(netip.AddrPortFrom(fe.Addr, fe.Port))))
	for _, ap := range fe.ofBoth(func(pool Pool) []netip.AddrPort { return p.chosen(fe, pool) }) {
		f.adopted = append(f.adopted, placed{setAdopted, f.keep(Key(AddrPortData(ap))), frontend})
	}
}

// useAdopted counts the adopters of the endpoints of a fragment: once more, or once less.
func (t *tableState) useAdopted(f *fragment, by int) {
	for _, e := range f.adopted {
		if _, kept := t.oldAdopted[e.key]; !kept {
			t.oldAdopted[e.key] = t.adopter(e.key)
		}
		of := t.adopters[e.key]
		if of == nil {
			of = map[string]int{}
			t.adopters[e.key] = of
		}
		if of[e.data] += by; of[e.data] == 0 {
			delete(of, e.data)
		}
		if len(of) == 0 {
			delete(t.adopters, e.key)
		}
	}
}

// adopter returns the frontend that an endpoint is adopted for, "" if no frontend or more than one
// asks for it.
func (t *tableState) adopter(endpoint string) string {
	if len(t.adopters[endpoint]) != 1 {
		return ""
	}
	for frontend := range t.adopters[endpoint] {
		return frontend
	}
	return ""
}

// settleAdopted changes the elements of endpoints whose adopter is another one.
func (t *tableState) settleAdopted() {
	for _, endpoint := range sortedKeys(t.oldAdopted) {
		if before := t.oldAdopted[endpoint]; before != "" {
			t.delete(placed{setAdopted, endpoint, before})
		}
	}
	for _, endpoint := range sortedKeys(t.oldAdopted) {
		if now := t.adopter(endpoint); now != "" {
			t.put(placed{setAdopted, endpoint, now})
		}
	}
}

// adoptedElements gives the elements of adopted endpoints. It reports whether more are wanted.
func (t *tableState) adoptedElements(yield func(string, Element) bool) bool {
	for _, endpoint := range sortedKeys(t.adopters) {
		if frontend := t.adopter(endpoint); frontend != "" && !yield(setAdopted, Element{endpoint, frontend}) {
			return false
		}
	}
	return true
}

// notTranslated returns the rule and chains of postrouting for connections that kept their destination.
//
//	chain adopt {
//		tcp flags ! syn snat ip to ip saddr . th sport map @adopted
//	}
func (t *tableState) notTranslated() (rule Rule, chains []Chain) {
	if !t.has(setAdopted) {
		return Rule{MatchNotDNAT{}, Verdict{Kind: Return}}, nil
	}
	adopt := Rule{MatchNoSYN{}, SourceMap{Key: []Field{Saddr, Sport}, Map: setAdopted}}
	return Rule{MatchNotDNAT{}, GotoChain(chainAdopt)}, []Chain{{Name: chainAdopt, Rules: []Rule{adopt}}}
}

// Adopts reports whether a ruleset adopts endpoints, or leads segments back to a source (egress-back).
func Adopts(have Ruleset) bool {
	for _, t := range have {
		if t != nil && len(t.elements(setAdopted))+len(t.elements(setEgressBack)) > 0 {
			return true
		}
	}
	return false
}
