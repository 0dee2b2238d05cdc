package relay

import (
	"fmt"
	"net"
	"net/netip"

	proxyproto "github.com/pires/go-proxyproto"
)

// introduce tells an endpoint who its client is and what that had sent to, by a header of the PROXY
// protocol (haproxy.org, proxy-protocol.txt), if the port has one. It is the first that the endpoint
// gets, so the send buffer takes it at once.
func (t *tcpPort) introduce(endpoint *net.TCPConn, client, asked netip.AddrPort) error {
	t.mu.Lock()
	version := t.port.Connect.ProxyProtocol
	t.mu.Unlock()
	if version == 0 {
		return nil
	}
	header, err := headerOf(version, client, asked)
	if err != nil {
		return err
	}
	_, err = endpoint.Write(header)
	return err
}

// headerOf is a header of a version, 1 or 2.
func headerOf(version int, from, to netip.AddrPort) ([]byte, error) {
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	header, err := proxyproto.HeaderProxyFromAddrs(byte(version), net.TCPAddrFromAddrPort(from), net.TCPAddrFromAddrPort(to)).Format()
	if err != nil {
		return nil, fmt.Errorf("header from %s to %s: %w", from, to, err)
	}
	return header, nil
}
