package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
)

// element is an element of a set or map that nft listed.
type element struct {
	Key     []string
	Value   string // as JSON, of a map
	Timeout int    // seconds, 0: none
	Expires int    // seconds
}

// table is the appliance's table of a family.
func (f family) table() string { return f.pick("ip", "ip6") + " svcctl" }

// table lists the elements of every set and map of the appliance's table in a family.
func (b *box) table(t *testing.T, f family) map[string][]element {
	t.Helper()
	out := b.GW1.Nft("-j", "list", "table", f.pick("ip", "ip6"), "svcctl")
	var listing struct {
		Nftables []map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(out), &listing); err != nil {
		t.Fatalf("nft -j list table: %v", err)
	}
	sets := map[string][]element{}
	for _, item := range listing.Nftables {
		for kind, raw := range item {
			if kind != "set" && kind != "map" {
				continue
			}
			var set struct {
				Name string
				Elem []json.RawMessage
			}
			if err := json.Unmarshal(raw, &set); err != nil {
				t.Fatalf("nft -j list table: %v", err)
			}
			sets[set.Name] = []element{}
			for _, e := range set.Elem {
				sets[set.Name] = append(sets[set.Name], elementOf(t, e, kind == "map"))
			}
		}
	}
	return sets
}

// elementOf reads an element: a key, or a key and a value; a key is a value, a list of
// values under "concat", or one of them under "elem" with the element's properties.
func elementOf(t *testing.T, raw json.RawMessage, isMap bool) element {
	t.Helper()
	var e element
	if isMap {
		var pair [2]json.RawMessage
		if err := json.Unmarshal(raw, &pair); err != nil {
			t.Fatalf("map element %s: %v", raw, err)
		}
		raw, e.Value = pair[0], string(pair[1])
	}
	var wrapped struct {
		Elem *struct {
			Val              json.RawMessage
			Timeout, Expires int
		}
		Concat []any
	}
	if json.Unmarshal(raw, &wrapped) == nil {
		if wrapped.Elem != nil {
			inner := elementOf(t, wrapped.Elem.Val, false)
			e.Key, e.Timeout, e.Expires = inner.Key, wrapped.Elem.Timeout, wrapped.Elem.Expires
			return e
		}
		if wrapped.Concat != nil {
			for _, part := range wrapped.Concat {
				e.Key = append(e.Key, fmt.Sprint(part))
			}
			return e
		}
	}
	var single any
	if err := json.Unmarshal(raw, &single); err != nil {
		t.Fatalf("element %s: %v", raw, err)
	}
	e.Key = []string{fmt.Sprint(single)}
	return e
}

// clusterIPOf is the address that serves a port of its own, "" when there is none. Tests
// give each Service they look for a port that no other one has.
func (b *box) clusterIPOf(t *testing.T, f family, port int) string {
	t.Helper()
	for _, e := range b.table(t, f)["services"] {
		if len(e.Key) == 3 && e.Key[2] == fmt.Sprint(port) {
			return e.Key[0]
		}
	}
	return ""
}

// clusterIPs are the addresses of all ports that are served, by port.
func (b *box) clusterIPs(t *testing.T, f family) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, e := range b.table(t, f)["services"] {
		if len(e.Key) == 3 {
			all[e.Key[2]] = e.Key[0]
		}
	}
	return all
}

// nodePortsInUse are the node ports that are served, with their protocols: "tcp 30080".
func (b *box) nodePortsInUse(t *testing.T, f family) []string {
	t.Helper()
	var all []string
	for _, e := range b.table(t, f)["nodeports"] {
		if len(e.Key) == 2 {
			all = append(all, e.Key[0]+" "+e.Key[1])
		}
	}
	return all
}
