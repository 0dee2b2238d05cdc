package appliance

import (
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
)

// slowTable is the kernel, with the watchdog told of the calls under way: a large transaction takes
// seconds on a machine with nothing else to do, and other programs' transactions come first.
type slowTable struct {
	table
	calls *slow
}

// Read implements table.
func (s slowTable) Read() (nft.Ruleset, uint32, error) {
	defer s.calls.begin("reading our tables from the kernel")()
	return s.table.Read()
}

// Commit implements table.
func (s slowTable) Commit(b *nft.Batch, generation uint32) (uint32, error) {
	defer s.calls.begin("a transaction of the kernel")()
	return s.table.Commit(b, generation)
}

// Check implements table.
func (s slowTable) Check(b *nft.Batch, generation uint32) error {
	defer s.calls.begin("a check of a transaction by the kernel")()
	return s.table.Check(b, generation)
}

// Forget implements table.
func (s slowTable) Forget(f nft.ForgetData, generation uint32) (uint32, error) {
	defer s.calls.begin("a transaction of the kernel")()
	return s.table.Forget(f, generation)
}

// slowEngine is a store's engine, with the watchdog told of the commits under way: the loop's own,
// and those of others that it has to wait for.
type slowEngine struct {
	store.Engine
	calls *slow
}

// Commit implements store.Engine.
func (s slowEngine) Commit(t store.Transaction) error {
	defer s.calls.begin("a commit to the data directory")()
	return s.Engine.Commit(t)
}
