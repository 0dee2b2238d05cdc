package dns

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/resolve"
)

// index contains all answers. Its maps are read without locks: values are immutable and
// replaced as a whole.
type index struct {
	domain string // ends with a dot
	labels []string
	facts  *resolve.Facts
	// server is the node of the name in the zone's NS record.
	server *node

	complete   atomic.Bool   // a name without an entry does not exist
	serial     atomic.Uint32 // of the SOA record
	services   sync.Map      // *records by serviceKey
	namespaces sync.Map      // by name: those that have a Service
	pointers   sync.Map      // names, a []string in order, by netip.Addr

	// What only update needs.
	population map[string]int // Services by namespace
	owners     map[netip.Addr][]string
}

type serviceKey struct{ namespace, name string }

func newIndex(cfg *Config) *index {
	return &index{
		domain: dns.Fqdn(cfg.Domain), labels: dns.SplitDomainName(cfg.Domain), facts: cfg.facts(), server: &node{},
		population: map[string]int{}, owners: map[netip.Addr][]string{},
	}
}

// update replaces the entries of Services by "namespace/name"; an input without a Service
// deletes them. It must not be called concurrently.
func (x *index) update(changed map[string]resolve.Input, now time.Time) {
	moved := map[netip.Addr]bool{}
	for key, in := range changed {
		namespace, name, _ := strings.Cut(key, "/")
		x.replace(serviceKey{namespace, name}, in, moved)
	}
	for addr := range moved {
		if names := x.owners[addr]; len(names) > 0 {
			x.pointers.Store(addr, slices.Clone(names))
		} else {
			x.pointers.Delete(addr)
			delete(x.owners, addr)
		}
	}
	// A serial is never used twice, not after a restart either (RFC 1982 order).
	x.serial.Store(max(x.serial.Load()+1, uint32(now.Unix())))
}

func (x *index) replace(key serviceKey, in resolve.Input, moved map[netip.Addr]bool) {
	var old, now *records
	if value, ok := x.services.Load(key); ok {
		old = value.(*records)
	}
	if in.Service != nil {
		now = newRecords(in, x.domain, x.facts)
	}
	x.move(old.names(), now.names(), moved)
	switch {
	case now != nil:
		x.services.Store(key, now)
		if old == nil {
			x.populate(key.namespace, 1)
		}
	case old != nil:
		x.services.Delete(key)
		x.populate(key.namespace, -1)
	}
}

// move replaces the names of addresses, and records the addresses affected.
func (x *index) move(old, now map[netip.Addr][]string, moved map[netip.Addr]bool) {
	for addr, names := range old {
		if slices.Equal(names, now[addr]) {
			continue
		}
		moved[addr] = true
		for _, name := range names {
			x.disown(addr, name)
		}
	}
	for addr, names := range now {
		if slices.Equal(names, old[addr]) {
			continue
		}
		moved[addr] = true
		for _, name := range names {
			x.own(addr, name)
		}
	}
}

func (x *index) own(addr netip.Addr, name string) {
	list := x.owners[addr]
	if at, found := slices.BinarySearch(list, name); !found {
		x.owners[addr] = slices.Insert(list, at, name)
	}
}

func (x *index) disown(addr netip.Addr, name string) {
	list := x.owners[addr]
	if at, found := slices.BinarySearch(list, name); found {
		x.owners[addr] = slices.Delete(list, at, at+1)
	}
}

func (x *index) populate(namespace string, change int) {
	x.population[namespace] += change
	if x.population[namespace] > 0 {
		x.namespaces.Store(namespace, true)
		return
	}
	delete(x.population, namespace)
	x.namespaces.Delete(namespace)
}

// known returns the "namespace/name" of all Services.
func (x *index) known() []string {
	var keys []string
	x.services.Range(func(key, _ any) bool {
		k := key.(serviceKey)
		keys = append(keys, k.namespace+"/"+k.name)
		return true
	})
	return keys
}

// Names that are always there.
var (
	empty   = &node{} // a name that only has names below it
	apex    = &node{apex: true}
	version = &node{text: schemaVersion}
)

// schemaVersion is the version of the specification, the text of dns-version.
const schemaVersion = "1.1.0"

// find returns the node of a name of the zone, nil if there is none. labels precede the
// domain, in lower case.
func (x *index) find(labels []string) *node {
	n := len(labels)
	if n == 0 {
		return apex
	}
	switch top := labels[n-1]; {
	case top == "svc":
		return x.findService(labels[:n-1])
	case n == 1 && top == "dns-version":
		return version
	case n == 1 && top == "dns":
		return empty
	case n == 2 && top == "dns" && labels[0] == "ns":
		return x.server
	}
	return nil
}

// findService returns the node of a name under svc.
func (x *index) findService(labels []string) *node {
	n := len(labels)
	switch n {
	case 0:
		return empty
	case 1:
		if _, ok := x.namespaces.Load(labels[0]); ok {
			return empty
		}
		return nil
	}
	value, ok := x.services.Load(serviceKey{labels[n-1], labels[n-2]})
	if !ok {
		return nil
	}
	switch r := value.(*records); n {
	case 2:
		return r.service
	case 3:
		if r.protocols[labels[0]] {
			return empty
		}
		return r.hosts[labels[0]]
	case 4:
		return r.ports[labels[0]+"."+labels[1]]
	}
	return nil
}

// names returns the names of an address.
func (x *index) names(addr netip.Addr) []string {
	if value, ok := x.pointers.Load(addr); ok {
		return value.([]string)
	}
	return nil
}
