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
	// HostPort returns why a client of the API may not have a port at an external IP, as when it is an address of
	// the host and a program listens there; nil allows it. As with NodePort, it is called for what is new.
	HostPort(addr netip.Addr, protocol string, port uint16) error
	// AnswersNodePorts reports an address of the host that node ports answer on.
	AnswersNodePorts(addr netip.Addr) bool
}

// unknownHost is the Host before the first look at it.
type unknownHost struct{}

func (unknownHost) ExternalIP(*object.Service, netip.Addr) error { return nil }
func (unknownHost) Reserved(*object.Service, netip.Addr) string  { return "" }
func (unknownHost) Avoid(netip.Addr, func() bool) bool           { return false }
func (unknownHost) NodePort(string, uint16) error                { return nil }
func (unknownHost) HostPort(netip.Addr, string, uint16) error    { return nil }
func (unknownHost) AnswersNodePorts(netip.Addr) bool             { return false }
