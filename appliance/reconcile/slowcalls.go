package reconcile

import (
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/engine"
)

// slowKernel is the kernel, with the watchdog told of the calls under way: a large transaction takes
// seconds on a machine with nothing else to do, and other programs' transactions come first.
type slowKernel struct {
	Kernel
	calls *SlowCalls
}

// Read implements Kernel.
func (s slowKernel) Read() (nft.Ruleset, uint32, error) {
	defer s.calls.begin("reading our tables from the kernel")()
	return s.Kernel.Read()
}

// Commit implements Kernel.
func (s slowKernel) Commit(b *nft.Batch, generation uint32) (uint32, error) {
	defer s.calls.begin("a transaction of the kernel")()
	return s.Kernel.Commit(b, generation)
}

// Check implements Kernel.
func (s slowKernel) Check(b *nft.Batch, generation uint32) error {
	defer s.calls.begin("a check of a transaction by the kernel")()
	return s.Kernel.Check(b, generation)
}

// Forget implements Kernel.
func (s slowKernel) Forget(f nft.ForgetData, generation uint32) (uint32, error) {
	defer s.calls.begin("a transaction of the kernel")()
	return s.Kernel.Forget(f, generation)
}

// slowEngine is a store's engine, with the watchdog told of the commits under way: the loop's own,
// and those of others that it has to wait for.
type slowEngine struct {
	engine.Engine
	calls *SlowCalls
}

// Commit implements engine.Engine.
func (s slowEngine) Commit(t engine.Transaction) error {
	defer s.calls.begin("a commit to the data directory")()
	return s.Engine.Commit(t)
}

// Kernel is k with the watchdog told of the calls under way.
func (s *SlowCalls) Kernel(k Kernel) Kernel { return slowKernel{k, s} }

// Engine is e with the watchdog told of the commits under way.
func (s *SlowCalls) Engine(e engine.Engine) engine.Engine { return slowEngine{e, s} }
