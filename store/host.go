package store

import (
	"net/netip"

	"svcctl.io/svcctl/store/object"
)

// Host is a snapshot of the machine, taken before a change begins. The store asks it under its lock: its
// methods look at nothing and wait for nothing.
type Host interface {
	// ExternalIP returns why a client of the API may not have an address as an externalIP; nil allows it.
	// Addresses that a Service has already are not asked about again, nor are those that files ask for.
	ExternalIP(svc *object.Service, addr netip.Addr) error
	// Reserved returns the use of an address that a Service may not have, as "a gateway of this host"; ""
	// for all others. Such an address is never allocated; for allocation Reserved is called without a
	// Service. A client of the API that asks for one as a cluster IP is refused; files are not.
	Reserved(svc *object.Service, addr netip.Addr) string
	// Avoid reports addresses of the ranges for cluster IPs that are allocated only on request;
	// isEndpoint reports whether the address is an endpoint's.
	Avoid(addr netip.Addr, isEndpoint func() bool) bool
	// NodePort returns why a client of the API may not have a node port that it asks for, as when a program
	// of the host listens there; nil allows it. It is not called for ports that a Service has already, nor
	// for those that files ask for.
	NodePort(protocol string, port uint16) error
}

// unknownHost is the Host before the first look at it.
type unknownHost struct{}

func (unknownHost) ExternalIP(*object.Service, netip.Addr) error { return nil }
func (unknownHost) Reserved(*object.Service, netip.Addr) string  { return "" }
func (unknownHost) Avoid(netip.Addr, func() bool) bool           { return false }
func (unknownHost) NodePort(string, uint16) error                { return nil }
