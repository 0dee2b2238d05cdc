package kernel

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

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
// ignores types it does not know; it uses the low ones.
const markType = 0xf0

// The types of base chains.
const (
	chainNAT    = "nat"
	chainFilter = "filter"
)

// addTable is `add table ip svcctl`: no error when it exists.
func (t *transaction) addTable(f nft.Family, flags uint32) {
	t.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, f)
	t.Text(unix.NFTA_TABLE_NAME, t.table)
	t.Uint32(unix.NFTA_TABLE_FLAGS, flags)
	t.End()
}

// deleteTable is `add table ip svcctl; delete table ip svcctl`, so that it is no
// error when there is none.
func (t *transaction) deleteTable(f nft.Family) {
	t.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, f) // no flags: those of one that exists stay
	t.Text(unix.NFTA_TABLE_NAME, t.table)
	t.End()
	t.message(unix.NFT_MSG_DELTABLE, 0, f)
	t.Text(unix.NFTA_TABLE_NAME, t.table)
	t.End()
}

// hookNumbers are the kernel's numbers of the hooks (enum nf_inet_hooks).
var hookNumbers = map[nft.Hook]uint32{
	nft.HookPrerouting:  unix.NF_INET_PRE_ROUTING,
	nft.HookInput:       unix.NF_INET_LOCAL_IN,
	nft.HookOutput:      unix.NF_INET_LOCAL_OUT,
	nft.HookPostrouting: unix.NF_INET_POST_ROUTING,
}

// addChain is `create chain ip svcctl prerouting { type nat hook prerouting priority
// dstnat; policy accept; }`, the braces for base chains only.
func (t *transaction) addChain(f nft.Family, c nft.Chain) {
	t.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE|unix.NLM_F_EXCL, f)
	t.Text(unix.NFTA_CHAIN_TABLE, t.table)
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

// deleteChain is `delete chain ip svcctl pick-5`, with its rules.
func (t *transaction) deleteChain(f nft.Family, name string) {
	t.message(unix.NFT_MSG_DELCHAIN, 0, f)
	t.Text(unix.NFTA_CHAIN_TABLE, t.table)
	t.Text(unix.NFTA_CHAIN_NAME, name)
	t.End()
}

// addCounter is `create counter ip svcctl stray`.
func (t *transaction) addCounter(f nft.Family, name string) {
	t.addObject(f, name, unix.NFT_OBJECT_COUNTER)
	t.EndNest(t.Nest(unix.NFTA_OBJ_DATA))
	t.End()
}

// deleteCounter is `delete counter ip svcctl stray`.
func (t *transaction) deleteCounter(f nft.Family, name string) {
	t.deleteObject(f, name, unix.NFT_OBJECT_COUNTER)
}

// setRules is `flush chain ip svcctl pick-5` and an `add rule ip svcctl pick-5 …` for
// each rule.
func (t *transaction) setRules(f nft.Family, chain string, rules []nft.Rule) {
	t.message(unix.NFT_MSG_DELRULE, 0, f)
	t.Text(unix.NFTA_RULE_TABLE, t.table)
	t.Text(unix.NFTA_RULE_CHAIN, chain)
	t.End()
	for _, r := range rules {
		t.addRule(f, chain, r)
	}
}

func (t *transaction) addRule(f nft.Family, chain string, r nft.Rule) {
	t.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, f)
	t.Text(unix.NFTA_RULE_TABLE, t.table)
	t.Text(unix.NFTA_RULE_CHAIN, chain)
	list := t.Nest(unix.NFTA_RULE_EXPRESSIONS)
	ranges := func(set string) bool { return t.ranges[setName{f, set}] }
	for _, e := range expressions(f, r, ranges) {
		b, err := expr.Marshal(protocolFamily(f), e)
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

// markData is a rule's userdata: a type, a length and the mark.
func markData(mark uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{markType, 8}, mark)
}

// markOf finds the mark in a rule's userdata; 0 when there is none.
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
