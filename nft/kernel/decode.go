package kernel

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// foreignHook is the Hook of a base chain with a type, hook or policy that this product does not use.
const foreignHook nft.Hook = 0xff

// setDefinition is a set as the kernel lists it.
type setDefinition struct {
	nft.Set
	anonymous bool
	count     int // number of elements; -1 if the kernel does not report it
}

// Attributes of a set that package unix does not name.
const (
	attrSetExpr        = 17 // NFTA_SET_EXPR: a counter or the like for each element
	attrSetExpressions = 18 // NFTA_SET_EXPRESSIONS: several such expressions
	attrSetCount       = 20 // NFTA_SET_COUNT, kernel 6.16
)

// foreignFlag marks a set with flags that this product does not use.
const foreignFlag = 1 << 31

// decodeSet reads the definition of a set. For a set that this product could not have made, it returns only the name.
func decodeSet(m *message, f nft.Family) setDefinition {
	var flags, keyCode, dataCode, keyLen, dataLen uint32
	set, count := nft.Set{}, -1
	for kind, value := range m.Attributes() {
		switch kind {
		case unix.NFTA_SET_NAME:
			set.Name = nfnetlink.Text(value)
		case unix.NFTA_SET_FLAGS:
			flags = uint32(nfnetlink.Number(value))
		case unix.NFTA_SET_KEY_TYPE:
			keyCode = uint32(nfnetlink.Number(value))
		case unix.NFTA_SET_KEY_LEN:
			keyLen = uint32(nfnetlink.Number(value))
		case unix.NFTA_SET_DATA_TYPE:
			dataCode = uint32(nfnetlink.Number(value))
		case unix.NFTA_SET_DATA_LEN:
			dataLen = uint32(nfnetlink.Number(value))
		case unix.NFTA_SET_TIMEOUT:
			set.Timeout = time.Duration(nfnetlink.Number(value)) * time.Millisecond
		case attrSetExpr:
			if set.Counted = isCounter(value); !set.Counted {
				flags |= foreignFlag
			}
		case attrSetExpressions:
			flags |= foreignFlag
		case attrSetCount:
			count = int(nfnetlink.Number(value))
		case unix.NFTA_SET_DESC:
			set.Size = uint32(nfnetlink.Number(nfnetlink.Attribute(value, unix.NFTA_SET_DESC_SIZE)))
		}
	}
	set.Interval = flags&unix.NFT_SET_INTERVAL != 0
	set.Dynamic = flags&unix.NFT_SET_EVAL != 0
	set.Key = decodeTypes(keyCode, keyLen, f)
	switch {
	case flags&unix.NFT_SET_MAP == 0:
	case dataCode == unix.NFT_DATA_VERDICT:
		set.Data = []nft.Type{nft.TypeVerdict}
	default:
		set.Data = decodeTypes(dataCode, dataLen, f)
	}
	if set.Key == nil || setFlags(&set) != flags {
		set = nft.Set{Name: set.Name}
	}
	return setDefinition{Set: set, anonymous: flags&unix.NFT_SET_ANONYMOUS != 0, count: count}
}

// decodeTypes returns the field types of a concatenation from its type code; nil if this product does not use one of the types, or their total length
// is not size.
func decodeTypes(code, size uint32, f nft.Family) (types []nft.Type) {
	ours := []nft.Type{nft.TypeAddr, nft.TypeProto, nft.TypeService, nft.TypeSlot, nft.TypeIface}
	for ; code != 0; code >>= codeBits {
		i := slices.IndexFunc(ours, func(t nft.Type) bool { return typeCode(t, f) == code&codeMask })
		if i < 0 {
			return nil
		}
		types = append(types, ours[i])
	}
	slices.Reverse(types)
	if len(types) == 0 || nft.KeyLen(types, f) != int(size) {
		return nil
	}
	return types
}

// listedChain is a chain as the kernel lists it, without its rules.
type listedChain struct {
	table, name, kind string // kind is the type of a base chain
	hook, policy      uint64
	priority          int
	base              bool
	anonymous         bool // created by a rule, which owns it
}

// decodeChain reads a chain from a netlink message.
func decodeChain(m *message) (c listedChain) {
	for kind, value := range m.Attributes() {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			c.table = nfnetlink.Text(value)
		case unix.NFTA_CHAIN_NAME:
			c.name = nfnetlink.Text(value)
		case unix.NFTA_CHAIN_TYPE:
			c.kind = nfnetlink.Text(value)
		case unix.NFTA_CHAIN_POLICY:
			c.policy = nfnetlink.Number(value)
		case attrChainFlags:
			c.anonymous = nfnetlink.Number(value)&chainBinding != 0
		case unix.NFTA_CHAIN_HOOK:
			c.base = true
			c.hook = nfnetlink.Number(nfnetlink.Attribute(value, unix.NFTA_HOOK_HOOKNUM))
			c.priority = int(int32(nfnetlink.Number(nfnetlink.Attribute(value, unix.NFTA_HOOK_PRIORITY))))
		}
	}
	return c
}

// chain converts c to an nft.Chain without rules.
func (c *listedChain) chain() nft.Chain {
	chain := nft.Chain{Name: c.name, Priority: c.priority}
	if !c.base {
		return chain
	}
	chain.Hook = foreignHook
	for h, n := range hookNumbers {
		if uint64(n) == c.hook && (c.kind == chainNAT || c.kind == chainFilter) && c.policy == nfAccept {
			chain.Hook, chain.Filter = h, c.kind == chainFilter
		}
	}
	return chain
}

// Attribute and flag of an anonymous chain, kernel 5.9, that package unix does not name.
const (
	attrChainFlags = 10     // NFTA_CHAIN_FLAGS
	chainBinding   = 1 << 2 // NFT_CHAIN_BINDING
)

// element is one element as the kernel lists it.
type element struct {
	key, keyEnd, data string
	end               bool          // the element only marks the end of an interval
	ours              bool          // this product could have made the element
	expiresIn         time.Duration // remaining time; 0 if the element does not expire
	packets           uint64        // number of packets in its counter
}

// elementDecoder reads the elements of one set.
type elementDecoder struct {
	set       *nft.Set
	key, data int               // lengths of keys and data in bytes; data is 0 for sets and verdict maps
	verdicts  map[string]string // shares one string among equal verdicts
	counted   bool              // skip elements without a counter or with a counter of 0
}

func decoderOf(set *nft.Set, f nft.Family) elementDecoder {
	d := elementDecoder{set: set, key: nft.KeyLen(set.Key, f), verdicts: map[string]string{}}
	if set.Data != nil && !isVerdictMap(set) {
		d.data = nft.KeyLen(set.Data, f)
	}
	return d
}

// elements calls each with every element in a message.
func (d *elementDecoder) elements(m *message, each func(element)) {
	for kind, list := range m.Attributes() {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		for _, b := range nfnetlink.Attributes(list) {
			if !d.counted || expressionPackets(nfnetlink.Attribute(b, unix.NFTA_SET_ELEM_EXPR)) > 0 {
				each(d.decode(b))
			}
		}
	}
}

func (d *elementDecoder) decode(b []byte) element {
	e := element{ours: true}
	for kind, value := range nfnetlink.Attributes(b) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = dataValue(value)
		case attrElementKeyEnd:
			e.keyEnd = dataValue(value)
		case unix.NFTA_SET_ELEM_DATA:
			e.data = d.dataOf(value)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.end = nfnetlink.Number(value)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_EXPR:
			e.packets = expressionPackets(value)
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.expiresIn = time.Duration(nfnetlink.Number(value)) * time.Millisecond
		}
	}
	concatenated := d.set.Interval && len(d.set.Key) > 1
	if concatenated && e.keyEnd == "" {
		e.keyEnd = e.key // a range of one
	}
	// A catch-all has no key.
	if len(e.key) != d.key || concatenated && len(e.keyEnd) != d.key {
		e.ours = false
	}
	switch {
	case e.end || d.set.Data == nil:
	case isVerdictMap(d.set):
		e.ours = e.ours && e.data != ""
	default:
		e.ours = e.ours && len(e.data) == d.data
	}
	return e
}

func dataValue(b []byte) string {
	return string(nfnetlink.Attribute(b, unix.NFTA_DATA_VALUE))
}

// dataOf returns the data of a map element; "" for a verdict that this product does not use.
func (d *elementDecoder) dataOf(b []byte) string {
	for kind, value := range nfnetlink.Attributes(b) {
		switch kind {
		case unix.NFTA_DATA_VALUE:
			return string(value)
		case unix.NFTA_DATA_VERDICT:
			verdict, ok := d.verdicts[string(value)]
			if !ok {
				verdict = decodeVerdict(value)
				d.verdicts[string(value)] = verdict
			}
			return verdict
		}
	}
	return ""
}

func decodeVerdict(b []byte) string {
	var code int32
	chain, found := "", false
	for kind, value := range nfnetlink.Attributes(b) {
		switch kind {
		case unix.NFTA_VERDICT_CODE:
			code, found = int32(nfnetlink.Number(value)), true
		case unix.NFTA_VERDICT_CHAIN:
			chain = nfnetlink.Text(value)
		}
	}
	for word, c := range verdictCodes {
		if found && c == code {
			return strings.TrimSuffix(word+" "+chain, " ")
		}
	}
	return ""
}

// joinIntervals adds the intervals of a set with a single field to into, each under the concatenation of its first and last key. The kernel lists
// starts and ends of intervals as separate elements, bounds. The last key is the predecessor of the next start or end, or the highest key if there is
// none. An end without a preceding start is skipped; nft adds one before the first interval.
func joinIntervals(into nft.Elements, set *nft.Set, f nft.Family, bounds []element) {
	slices.SortFunc(bounds, func(a, b element) int {
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(rank(a), rank(b)))
	})
	for i, e := range bounds {
		if e.end {
			continue
		}
		last := strings.Repeat("\xff", len(e.key))
		if i+1 < len(bounds) {
			last = predecessor(bounds[i+1].key)
		}
		into[swapHostOrder(set, f, e.key)+swapHostOrder(set, f, last)] = e.data
	}
}

// rank returns the sort order of elements with equal keys: the end of an interval comes before a start.
func rank(e element) int {
	if e.end {
		return 0
	}
	return 1
}
