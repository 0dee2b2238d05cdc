package store

import "testing"

// Nothing of a transaction is kept once it is over: its changes, with what was encoded for the
// engine, are as large as all that was written.
func TestTransactionsAreNotKept(t *testing.T) {
	b := newBox(t)
	b.apply("a.yaml", "web {}")
	b.must(write(configMap("a", "1")))
	if l := b.s.ledger; l.backing != nil || l.avoidIngress != nil || l.avoidAddress != nil || l.use != nil || l.loses != nil {
		t.Error("the ledger still asks a transaction that is over")
	}
}
