package kernel

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// typeCodes are nft's numbers of the datatypes that are the same for IPv4 and IPv6 (enum datatypes in its datatype.h). The kernel only stores them
// for nft.
var typeCodes = map[nft.Type]uint32{nft.TypeVerdict: 1, nft.TypeSlot: 4, nft.TypeProto: 12, nft.TypeService: 13, nft.TypeIface: 20}

const (
	codeBits = 6 // bits of a type code for each field of a concatenation
	codeMask = 1<<codeBits - 1
)

func typeCode(t nft.Type, f nft.Family) uint32 {
	if t == nft.TypeAddr {
		return protocols[f].address
	}
	code, known := typeCodes[t]
	if !known {
		panic("nft/kernel: type of no kind")
	}
	return code
}

// concatCode returns nft's type code of a key or of data: the codes of the fields, with the first field in the highest bits.
func concatCode(types []nft.Type, f nft.Family) (code uint32) {
	for _, t := range types {
		code = code<<codeBits | typeCode(t, f)
	}
	return code
}

// isVerdictMap reports whether a set's data are verdicts.
func isVerdictMap(s *nft.Set) bool { return len(s.Data) == 1 && s.Data[0] == nft.TypeVerdict }

// setFlags returns the flags of a set (NFT_SET_*).
func setFlags(s *nft.Set) (flags uint32) {
	if s.Data != nil {
		flags |= unix.NFT_SET_MAP
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
		if len(s.Key) > 1 {
			flags |= setConcat
		}
	}
	if s.Timeout != 0 {
		flags |= unix.NFT_SET_TIMEOUT
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_EVAL
	}
	return flags
}

// addSet appends the message of a command like `create map ip svcctl services { type ipv4_addr . inet_proto . inet_service : verdict; }`, with
// `typeof …` instead of `type` if the key has a slot.
func (t *transaction) addSet(f nft.Family, s *nft.Set) {
	t.setID++
	t.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, f)
	t.Text(unix.NFTA_SET_NAME, s.Name)
	t.Uint32(unix.NFTA_SET_FLAGS, setFlags(s))
	t.Uint32(unix.NFTA_SET_KEY_TYPE, concatCode(s.Key, f))
	t.Uint32(unix.NFTA_SET_KEY_LEN, uint32(nft.KeyLen(s.Key, f)))
	switch {
	case isVerdictMap(s):
		t.Uint32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	case s.Data != nil:
		t.Uint32(unix.NFTA_SET_DATA_TYPE, concatCode(s.Data, f))
		t.Uint32(unix.NFTA_SET_DATA_LEN, uint32(nft.KeyLen(s.Data, f)))
	}
	t.Uint32(unix.NFTA_SET_ID, t.setID)
	if s.Timeout != 0 {
		t.Uint64(unix.NFTA_SET_TIMEOUT, uint64(s.Timeout/time.Millisecond))
	}
	if s.Counted {
		counter := t.Nest(attrSetExpr) // for each element
		t.Text(unix.NFTA_EXPR_NAME, counterName)
		t.EndNest(t.Nest(unix.NFTA_EXPR_DATA))
		t.EndNest(counter)
	}
	t.setDescription(f, s)
	if userdata := typeofData(f, s); userdata != nil {
		t.Bytes(unix.NFTA_SET_USERDATA, userdata)
	}
	t.End()
}

// setDescription encodes the size of a set and, for concatenations with ranges, the lengths of
// the fields (with their padding, as nft does).
func (t *transaction) setDescription(f nft.Family, s *nft.Set) {
	concatenated := s.Interval && len(s.Key) > 1
	if s.Size == 0 && !concatenated {
		return
	}
	description := t.Nest(unix.NFTA_SET_DESC)
	if s.Size != 0 {
		t.Uint32(unix.NFTA_SET_DESC_SIZE, s.Size)
	}
	if concatenated {
		fields := t.Nest(attrSetDescConcat)
		for _, k := range s.Key {
			field := t.Nest(unix.NFTA_LIST_ELEM)
			t.Uint32(attrSetFieldLen, uint32(nfnetlink.Align(k.Len(f))))
			t.EndNest(field)
		}
		t.EndNest(fields)
	}
	t.EndNest(description)
}

// elementsLimit is the length in bytes at which a list of elements continues in another message.
// The element that exceeds it still fits below nfnetlink.MaxAttr.
const elementsLimit = 60_000

// elements appends the messages of `add element ip svcctl backends { key : data, … }`, or of `delete element` or `destroy element`, which ignore the
// data. Long lists are split into several messages.
func (t *transaction) elements(kind, flags uint16, f nft.Family, s *nft.Set, elements []nft.Element) {
	for next := 0; next < len(elements); {
		t.message(kind, flags, f)
		t.parts[len(t.parts)-1].element = next
		t.Text(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
		list := t.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for next < len(elements) && len(t.Buf)-list < elementsLimit {
			e := elements[next]
			if kind != unix.NFT_MSG_NEWSETELEM {
				e.Data = ""
			}
			if err := t.element(f, s, e); err != nil {
				t.fail(fmt.Errorf("encode element of %s: %w", s.Name, err))
				next = len(elements)
				break
			}
			next++
		}
		t.EndNest(list)
		t.End()
	}
}

// element writes one element. An interval of a set with a single field is written as two: its
// first key, and the key after its last one, marked as an end.
func (t *transaction) element(f nft.Family, s *nft.Set, e nft.Element) error {
	n := nft.KeyLen(s.Key, f)
	want := n
	if s.Interval {
		want = 2 * n
	}
	if len(e.Key) != want {
		return fmt.Errorf("key %x is not %d bytes long", e.Key, want)
	}
	if !s.Interval {
		return t.oneElement(s, e.Key, "", e.Data, 0)
	}
	first, last := swapHostOrder(s, f, e.Key[:n]), swapHostOrder(s, f, e.Key[n:])
	if first > last {
		return fmt.Errorf("range %x ends before it starts", e.Key)
	}
	if len(s.Key) > 1 {
		return t.oneElement(s, first, last, e.Data, 0)
	}
	if err := t.oneElement(s, first, "", e.Data, 0); err != nil {
		return err
	}
	end, ok := successor(last)
	if !ok {
		return nil // an interval without an end goes to the last key
	}
	return t.oneElement(s, end, "", "", unix.NFT_SET_ELEM_INTERVAL_END)
}

// isHostOrder reports whether values of a type are held in host byte order.
func isHostOrder(t nft.Type) bool { return t == nft.TypeSlot || t == nft.TypeIface }

// swapHostOrder converts the numbers in the key of an interval set from host to network byte order, or back. The kernel compares ranges byte by byte.
// nft stores such numbers the same way, and converts the number of the packet too (`byteorder hton`).
func swapHostOrder(s *nft.Set, f nft.Family, key string) string {
	if !s.Interval || !slices.ContainsFunc(s.Key, isHostOrder) || len(key) != nft.KeyLen(s.Key, f) {
		return key
	}
	b := []byte(key)
	offset := 0
	for _, t := range s.Key {
		if isHostOrder(t) {
			binary.BigEndian.PutUint32(b[offset:], binary.NativeEndian.Uint32(b[offset:]))
		}
		offset += nfnetlink.Align(t.Len(f))
	}
	return string(b)
}

// attrElementKeyEnd is NFTA_SET_ELEM_KEY_END, kernel 5.6.
const attrElementKeyEnd = 10

func (t *transaction) oneElement(s *nft.Set, key, keyEnd, data string, flags uint32) error {
	element := t.Nest(unix.NFTA_LIST_ELEM)
	t.value(unix.NFTA_SET_ELEM_KEY, key)
	if keyEnd != "" {
		t.value(attrElementKeyEnd, keyEnd)
	}
	if flags != 0 {
		t.Uint32(unix.NFTA_SET_ELEM_FLAGS, flags)
	}
	if t.timeout != 0 {
		t.Uint64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(t.timeout/time.Millisecond))
	}
	switch {
	case data == "":
	case isVerdictMap(s):
		if err := t.verdict(data); err != nil {
			return err
		}
	default:
		t.value(unix.NFTA_SET_ELEM_DATA, data)
	}
	t.EndNest(element)
	return nil
}

func (t *transaction) value(kind uint16, bytes string) {
	outer := t.Nest(kind)
	t.Raw(unix.NFTA_DATA_VALUE, bytes)
	t.EndNest(outer)
}

// verdictCodes are the kernel's numbers of verdicts (enum nft_verdicts, NF_ACCEPT and
// NF_DROP), by the first word of their text.
var verdictCodes = map[string]int32{
	"accept":   nfAccept,
	"drop":     nfDrop,
	"continue": unix.NFT_CONTINUE,
	"return":   unix.NFT_RETURN,
	"goto":     unix.NFT_GOTO,
	"jump":     unix.NFT_JUMP,
}

func (t *transaction) verdict(data string) error {
	word, chain, hasChain := strings.Cut(data, " ")
	code, ok := verdictCodes[word]
	if !ok || hasChain != (code == unix.NFT_GOTO || code == unix.NFT_JUMP) {
		return fmt.Errorf("%q is no verdict", data)
	}
	outer := t.Nest(unix.NFTA_SET_ELEM_DATA)
	verdict := t.Nest(unix.NFTA_DATA_VERDICT)
	t.Uint32(unix.NFTA_VERDICT_CODE, uint32(code))
	if hasChain {
		t.Text(unix.NFTA_VERDICT_CHAIN, chain)
	}
	t.EndNest(verdict)
	t.EndNest(outer)
	return nil
}

// successor returns the next key of the same length in byte order; false if key is the highest.
func successor(key string) (string, bool) {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]++
		if b[i] != 0 {
			return string(b), true
		}
	}
	return "", false
}

// predecessor returns the previous key of the same length in byte order. key must not be the lowest.
func predecessor(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]--
		if b[i] != 0xff {
			break
		}
	}
	return string(b)
}

// Table flags that package unix has no names for.
const (
	tableOwner   = 0x2 // NFT_TABLE_F_OWNER, kernel 5.12
	tablePersist = 0x4 // NFT_TABLE_F_PERSIST, kernel 6.9
)

// Attributes that package unix has no names for (linux/netfilter/nf_tables.h).
const (
	attrSetDescConcat = 2      // NFTA_SET_DESC_CONCAT
	attrSetFieldLen   = 1      // NFTA_SET_FIELD_LEN
	setConcat         = 1 << 7 // NFT_SET_CONCAT, kernel 5.6
	msgDestroySetElem = 30     // NFT_MSG_DESTROYSETELEM, kernel 6.3
)

// Verdicts of netfilter itself (linux/netfilter.h).
const (
	nfDrop   = 0
	nfAccept = 1
)

// markType is the type of the part of a rule's userdata that holds its mark. nft
// ignores unknown types; it uses the low ones.
const markType = 0xf0

// The types of base chains.
const (
	chainNAT    = "nat"
	chainFilter = "filter"
)

// addTable appends the message of `add table ip svcctl`, which is not an error if the table exists.
func (t *transaction) addTable(f nft.Family, flags uint32) {
	t.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, f)
	t.Uint32(unix.NFTA_TABLE_FLAGS, flags)
	t.End()
}

// deleteTable appends the messages of `add table ip svcctl; delete table ip svcctl`, so that it is not an error if the table does not exist.
func (t *transaction) deleteTable(f nft.Family) {
	t.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, f) // no flags: those of one that exists stay
	t.End()
	t.message(unix.NFT_MSG_DELTABLE, 0, f)
	t.End()
}

// hookNumbers are the kernel's numbers of the hooks (enum nf_inet_hooks).
var hookNumbers = map[nft.Hook]uint32{
	nft.HookPrerouting:  unix.NF_INET_PRE_ROUTING,
	nft.HookInput:       unix.NF_INET_LOCAL_IN,
	nft.HookForward:     unix.NF_INET_FORWARD,
	nft.HookOutput:      unix.NF_INET_LOCAL_OUT,
	nft.HookPostrouting: unix.NF_INET_POST_ROUTING,
}

// addChain appends the message of a command like `create chain ip svcctl prerouting { type nat hook prerouting priority dstnat; policy accept; }`.
// Only base chains have the part in braces.
func (t *transaction) addChain(f nft.Family, c nft.Chain) {
	t.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, f)
	t.Text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != nft.HookNone {
		hook := t.Nest(unix.NFTA_CHAIN_HOOK)
		t.Uint32(unix.NFTA_HOOK_HOOKNUM, hookNumbers[c.Hook])
		t.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(int32(c.Priority)))
		t.EndNest(hook)
		t.Uint32(unix.NFTA_CHAIN_POLICY, nfAccept)
		kind := chainNAT
		if c.Filter {
			kind = chainFilter
		}
		t.Text(unix.NFTA_CHAIN_TYPE, kind)
	}
	t.End()
}

// addCounter appends the message of a command like `create counter ip svcctl stray`.
func (t *transaction) addCounter(f nft.Family, name string) {
	t.addObject(f, name, unix.NFT_OBJECT_COUNTER)
	t.EndNest(t.Nest(unix.NFTA_OBJ_DATA))
	t.End()
}

// setRules appends the messages of `flush chain ip svcctl pick-5` and one `add rule ip svcctl pick-5 …` for each rule.
func (t *transaction) setRules(f nft.Family, chain string, rules []nft.Rule) {
	t.message(unix.NFT_MSG_DELRULE, 0, f)
	t.Text(unix.NFTA_RULE_CHAIN, chain)
	t.End()
	for _, r := range rules {
		t.addRule(f, chain, r)
	}
}

func (t *transaction) addRule(f nft.Family, chain string, r nft.Rule) {
	t.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, f)
	t.Text(unix.NFTA_RULE_CHAIN, chain)
	list := t.Nest(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range expressions(f, r) {
		b, err := expr.Marshal(protocols[f].family, e)
		if err != nil {
			t.fail(fmt.Errorf("encode rule `%s`: %w", r.Text(f), err))
			break
		}
		t.Bytes(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, b)
	}
	if !t.EndNest(list) {
		t.fail(fmt.Errorf("encode rule `%s`: %w", r.Text(f), ErrTooBig))
	}
	t.Bytes(unix.NFTA_RULE_USERDATA, markData(r.Mark(f)))
	t.End()
}

// markData returns a rule's userdata: a type, a length and the mark.
func markData(mark uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{markType, 8}, mark)
}

// markOf returns the mark in a rule's userdata, or 0 if there is none.
func markOf(userdata []byte) uint64 {
	for len(userdata) >= 2 {
		n := 2 + int(userdata[1])
		if n > len(userdata) {
			break
		}
		if userdata[0] == markType && n == 2+8 {
			return nfnetlink.Number(userdata[2:n])
		}
		userdata = userdata[n:]
	}
	return 0
}

// Types of the parts of a set's userdata in libnftnl and nft 1.0.6. Each part has a type and a length of one byte each, and a value; numbers are 4
// bytes in host byte order.
const (
	udataKeyByteOrder  = 0 // NFTNL_UDATA_SET_KEYBYTEORDER
	udataDataByteOrder = 1 // NFTNL_UDATA_SET_DATABYTEORDER
	udataKeyTypeof     = 3 // NFTNL_UDATA_SET_KEY_TYPEOF
	udataDataTypeof    = 4 // NFTNL_UDATA_SET_DATA_TYPEOF
	udataDataInterval  = 6 // NFTNL_UDATA_SET_DATA_INTERVAL

	udataTypeofExpr = 0 // NFTNL_UDATA_SET_TYPEOF_EXPR: which kind of expression
	udataTypeofData = 1 // NFTNL_UDATA_SET_TYPEOF_DATA: its arguments

	exprPayload = 7  // EXPR_PAYLOAD (enum expr_types of nft)
	exprMeta    = 9  // EXPR_META
	exprConcat  = 13 // EXPR_CONCAT
	exprNumgen  = 23 // EXPR_NUMGEN

	protocolTransport = 11 // PROTO_DESC_TH
	headerDport       = 2  // THDR_DPORT
)

// typeofData returns the userdata of a set. If the key has a slot, it holds the typeof expressions with which `nft list` prints the set: `typeof ip
// daddr . meta l4proto . th dport . numgen random mod 1 : ip daddr . th dport`. An integer has no fixed length, so nft could neither print nor load
// it as a `type`. For a set of interfaces it holds only the byte order, without which nft prints the indexes byte-swapped. It is nil for every other
// set, because nft needs only the type codes.
func typeofData(f nft.Family, s *nft.Set) []byte {
	if len(s.Key) == 1 && s.Key[0] == nft.TypeIface && !s.Interval {
		return appendNumber(nil, udataKeyByteOrder, byteOrder(s.Key))
	}
	if !slices.Contains(s.Key, nft.TypeSlot) {
		return nil
	}
	values := s.Data != nil && !isVerdictMap(s)
	u := appendNumber(nil, udataKeyByteOrder, byteOrder(s.Key))
	if values {
		u = appendNumber(u, udataDataByteOrder, byteOrder(s.Data))
	}
	u = appendUdata(u, udataKeyTypeof, typeofTypes(f, s.Key))
	if values {
		u = appendUdata(u, udataDataTypeof, typeofTypes(f, s.Data))
		u = appendNumber(u, udataDataInterval, 0)
	}
	return u
}

// byteOrder returns nft's number (enum byteorder) for the byte order of a key or of data. A concatenation has mixed byte order, number 0.
func byteOrder(types []nft.Type) uint32 {
	const mixed, host, network = 0, 1, 2
	switch {
	case len(types) > 1:
		return mixed
	case types[0] == nft.TypeSlot || types[0] == nft.TypeIface:
		return host
	}
	return network
}

func typeofTypes(f nft.Family, types []nft.Type) []byte {
	if len(types) == 1 {
		return fieldTypeof(f, types[0])
	}
	var fields []byte
	for i, t := range types {
		fields = appendUdata(fields, byte(i), fieldTypeof(f, t))
	}
	return typeof(exprConcat, fields)
}

// fieldTypeof returns the encoded typeof expression for a field of a type.
func fieldTypeof(f nft.Family, t nft.Type) []byte {
	switch t {
	case nft.TypeAddr: // ip daddr
		return typeof(exprPayload, numbers(protocols[f].headerDesc, protocols[f].headerDaddr))
	case nft.TypeProto: // meta l4proto
		return typeof(exprMeta, numbers(unix.NFT_META_L4PROTO))
	case nft.TypeService: // th dport
		return typeof(exprPayload, numbers(protocolTransport, headerDport))
	case nft.TypeSlot: // numgen random mod 1
		return typeof(exprNumgen, numbers(unix.NFT_NG_RANDOM, 1, 0))
	case nft.TypeIface: // iif
		return typeof(exprMeta, numbers(unix.NFT_META_IIF))
	}
	panic("nft/kernel: type that stands for no expression")
}

func typeof(expression uint32, data []byte) []byte {
	return appendUdata(appendNumber(nil, udataTypeofExpr, expression), udataTypeofData, data)
}

// numbers returns userdata that holds the values as parts with types 0, 1 and so on.
func numbers(values ...uint32) (u []byte) {
	for i, v := range values {
		u = appendNumber(u, byte(i), v)
	}
	return u
}

func appendNumber(u []byte, kind byte, v uint32) []byte {
	return appendUdata(u, kind, binary.NativeEndian.AppendUint32(nil, v))
}

func appendUdata(u []byte, kind byte, value []byte) []byte {
	return append(append(u, kind, byte(len(value))), value...)
}
