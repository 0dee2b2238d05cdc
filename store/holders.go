package store

import (
	"net/netip"

	"svcctl.io/svcctl/store/alloc"
)

// reservedOwner holds the values that are reserved. No Service has that name.
const reservedOwner = "(unknown: in force in the kernel, see svcctl release)"

// ReservedFrontend is an address and port, or with the zero Addr a node port, that the kernel
// serves for a Service which the store does not know, since its data was lost.
type ReservedFrontend struct {
	Addr      netip.Addr
	Port      alloc.Port
	Endpoints []netip.Addr
}

// reserved are the values of ReservedFrontends.
type reserved struct {
	addresses map[netip.Addr][]ReservedFrontend
	nodePorts map[alloc.Port][]ReservedFrontend
}

// trialOwner holds what Services gave up in a trial, rolloutOwner what they gave up in a rollout. No Service has such a name.
const (
	trialOwner   = "(on trial: it goes back unless confirmed)"
	rolloutOwner = "(in a rollout: some boxes serve it until that is done)"
)

// kept are values that trialOwner or rolloutOwner holds, and who gave them up.
type kept struct {
	addresses map[netip.Addr]string
	ports     map[alloc.Port]string
	ingress   map[netip.Addr]string
}
