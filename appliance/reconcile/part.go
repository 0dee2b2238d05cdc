package reconcile

import (
	"context"
	"net/netip"

	"svcctl.io/svcctl/appliance/node"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/nft"
)

// Part follows the loop. The loop calls its methods, but for Run, one at a time and from one
// goroutine; none of them may wait for anything. Embed NopPart for the methods that a Part
// has no use for.
type Part interface {
	// Name names the Part in the log.
	Name() string
	// Attach takes the function to call, from any goroutine, when Problems has other results than before, or needs have
	// other states: the Services that have them are planned again. It never waits.
	Attach(changed func(needs ...resolve.Need))
	// Run works until ctx is done. An error ends the appliance.
	Run(ctx context.Context) error

	// Adopt takes the tables that the kernel held at the start, before the first Planned.
	Adopt(have nft.Ruleset)
	// Planned takes the Services whose plan changed, each with all it has; at the first call all
	// Services. host is nil unless the host changed; then all that depend on the change are among them.
	Planned(host *Host, services []Service)
	// Applying announces a transaction with what was Planned. restored reports that rules of ours
	// were missing in the kernel for a while.
	Applying(restored bool)
	// Stepped ends each step of the loop.
	Stepped(Step)

	// Problems are shown in the status.
	Problems() []resolve.Problem
}

// Host is this host as the loop plans for it.
type Host struct {
	Facts *node.Facts
	Box   nft.Box
	// Resolve has the facts that Services are resolved against.
	Resolve resolve.Facts
	// Loopback are the loopback addresses that node ports answer on.
	Loopback []netip.Addr
}

// Service is a planned Service.
type Service struct {
	// Key is "namespace/name".
	Key string
	// Ports are served; none: the Service is gone, or has nothing that can be served.
	Ports []nft.ServicePort
	// Needs has all that the plan depends on besides objects and the host.
	Needs []resolve.Need
	resolve.Settings
	resolve.Health
}

// Step is the outcome of one step of the loop.
type Step struct {
	// Facts are nil until they were read for the first time.
	Facts *node.Facts
	// Applied reports that the kernel holds all that was Planned: everything was read, and what could be stored is in force.
	Applied bool
}

// NopPart is a Part that does nothing.
type NopPart struct {
	changed func(needs ...resolve.Need)
}

func (n *NopPart) Attach(changed func(needs ...resolve.Need)) { n.changed = changed }

// Changed wakes the loop (Part.Attach). Before Attach it does nothing: the first plan depends on the states of that time.
func (n *NopPart) Changed(needs ...resolve.Need) {
	if n.changed != nil {
		n.changed(needs...)
	}
}

func (*NopPart) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (*NopPart) Adopt(nft.Ruleset)             {}
func (*NopPart) Planned(*Host, []Service)      {}
func (*NopPart) Applying(bool)                 {}
func (*NopPart) Stepped(Step)                  {}
func (*NopPart) Problems() []resolve.Problem   { return nil }
