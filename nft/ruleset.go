package nft

import (
	"net/netip"
	"time"
)

// Family is an IP version; each has a table of its own.
type Family uint8

const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both, in the order everything is printed and committed.
var Families = [...]Family{IPv4, IPv6}

// String is the table family in nft syntax.
func (f Family) String() string {
	if f == IPv6 {
		return "ip6"
	}
	return "ip"
}

// Name is the family in Kubernetes (core/v1 IPFamily).
func (f Family) Name() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// FamilyOf is the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// AddrLen is the length of an address in bytes.
func (f Family) AddrLen() int {
	if f == IPv6 {
		return 16
	}
	return 4
}

// Type is the datatype of one field of a set's key or a map's data.
type Type uint8

const (
	TypeAddr    Type = iota + 1 // ipv4_addr or ipv6_addr, network byte order
	TypeProto                   // inet_proto, 1 byte
	TypeService                 // inet_service, 2 bytes, network byte order
	TypeSlot                    // integer, 4 bytes, host byte order (what numgen gives)
	TypeIface                   // iface_index, 4 bytes, host byte order
	TypeVerdict                 // a verdict map's data
)

// Len is the length of a value in bytes, without the padding of a concatenation.
func (t Type) Len(f Family) int {
	switch t {
	case TypeAddr:
		return f.AddrLen()
	case TypeProto:
		return 1
	case TypeService:
		return 2
	case TypeSlot, TypeIface:
		return 4
	}
	panic("nft: type without a length")
}

// Set is the definition of a set or, when Data is given, of a map.
type Set struct {
	Name     string
	Key      []Type
	Data     []Type        // nil: a set; {TypeVerdict}: a verdict map
	Interval bool          // a key is a range; see Elements
	Timeout  time.Duration // not 0: elements may expire, this is their default life
	Dynamic  bool          // packets add the elements, so Diff leaves them alone
	Size     uint32        // the most elements; 0: no limit
	Counted  bool          // each element counts the packets that it was found for
}

// Elements are the elements of a set, as the kernel holds them: key bytes to data
// bytes ("" for sets). In a concatenation every field is padded to a multiple of
// 4 bytes. The data of a verdict map is the verdict's text (Verdict.String).
// The key of an interval set is the first key followed by the last one, both
// inclusive and of the same length; ranges of a set never overlap.
type Elements map[string]string

// SetContent is a set with its elements.
type SetContent struct {
	Set
	Elements Elements
}

// Hook is a netfilter hook of a base chain.
type Hook uint8

const (
	HookNone Hook = iota // a chain that other chains go to
	HookPrerouting
	HookInput
	HookOutput
	HookPostrouting
)

// The priorities of NAT chains (netfilter's NF_IP_PRI_NAT_DST and NF_IP_PRI_NAT_SRC).
const (
	PriorityDstNAT = -100
	PrioritySrcNAT = 100
)

// PriorityStray is the priority of the filter chain for packets without a connection: after the NAT
// chains, which do not see such packets.
const PriorityStray = PriorityDstNAT + 10

// Chain is a list of rules. Every base chain has the policy accept.
type Chain struct {
	Name     string
	Hook     Hook
	Priority int
	Filter   bool // a base chain of type filter, which sees every packet; the others are of type nat
	Rules    []Rule
	// Marks are the marks (Rule.Mark) of the rules of a chain that was read from the
	// kernel, which gives no Rules back. A rule that is not ours has mark 0.
	Marks []uint64
}

// Table is the ruleset of one family.
type Table struct {
	Sets   map[string]*SetContent
	Chains map[string]*Chain
	// Timeouts are the timeout objects, by name. One that was read and that this product could
	// not have made is the zero Timeout.
	Timeouts map[string]Timeout
	// Counters are the names of the counters that rules use, sorted.
	Counters []string
}

// TableName is the name of our table in both families.
const TableName = "svcctl"

// Ruleset holds the product's tables in the kernel: one for each family. A family without a table
// is nil.
type Ruleset map[Family]*Table
