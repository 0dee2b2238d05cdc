package store

import (
	"net/netip"

	"svcctl.io/svcctl/store/object"
)

// hostOf is a Host that says what a test wants; what is nil refuses nothing.
type hostOf struct {
	unknownHost
	externalIP func(*object.Service, netip.Addr) error
	reserved   func(*object.Service, netip.Addr) string
	nodePort   func(string, uint16) error
}

func (h hostOf) ExternalIP(svc *object.Service, addr netip.Addr) error {
	if h.externalIP == nil {
		return nil
	}
	return h.externalIP(svc, addr)
}

func (h hostOf) Reserved(svc *object.Service, addr netip.Addr) string {
	if h.reserved == nil {
		return ""
	}
	return h.reserved(svc, addr)
}

func (hostOf) HostPort(netip.Addr, string, uint16) error { return nil }

func (h hostOf) AnswersNodePorts(addr netip.Addr) bool { return h.Reserved(nil, addr) != "" }

func (h hostOf) NodePort(protocol string, port uint16) error {
	if h.nodePort == nil {
		return nil
	}
	return h.nodePort(protocol, port)
}
