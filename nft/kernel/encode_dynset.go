package kernel

import (
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
)

// dynsetDelete is NFT_DYNSET_OP_DELETE (linux/netfilter/nf_tables.h), since kernel 5.4.
const dynsetDelete = 2

// update is `update @affinity-1 { ip saddr timeout 3h : ip daddr . th dport }`, or with add.
func (e *encoder) update(u nft.Update) {
	dynset := &expr.Dynset{
		SrcRegKey: firstRegister, SetName: u.Map,
		Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: u.Timeout,
	}
	if u.Add {
		dynset.Operation = unix.NFT_DYNSET_OP_ADD
	}
	if u.Rate.Count > 0 {
		dynset.Exprs = append(dynset.Exprs, limit(u.Rate))
	}
	if u.Connections > 0 {
		dynset.Exprs = append(dynset.Exprs, &expr.Connlimit{Count: u.Connections, Flags: expr.NFT_CONNLIMIT_F_INV})
	}
	next := e.load(u.Key, firstRegister)
	if len(u.Data) > 0 {
		dynset.SrcRegData = nextBlock(next)
		e.load(u.Data, dynset.SrcRegData)
	}
	e.add(dynset)
}

// limit is `limit rate over 100/second burst 100 packets`.
func limit(r nft.Rate) *expr.Limit {
	return &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(r.Count), Over: true, Unit: expr.LimitTime(r.Per / time.Second), Burst: r.Burst()}
}
