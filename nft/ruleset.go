package nft

import (
	"time"
)

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
