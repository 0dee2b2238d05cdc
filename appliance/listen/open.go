package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// TCP listens on host:port. An empty host, as [::], stands for all addresses of both families.
func TCP(ctx context.Context, address string) (net.Listener, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && isEvery(host) {
		if l, err := both.Listen(ctx, "tcp6", net.JoinHostPort("::", port)); !errors.Is(err, syscall.EAFNOSUPPORT) { // a kernel without IPv6
			return l, err
		}
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

// UDP opens a socket on host:port. An empty host, as [::], stands for all addresses of both families.
func UDP(ctx context.Context, address string) (net.PacketConn, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && isEvery(host) {
		if c, err := both.ListenPacket(ctx, "udp6", net.JoinHostPort("::", port)); !errors.Is(err, syscall.EAFNOSUPPORT) {
			return c, err
		}
	}
	return new(net.ListenConfig).ListenPacket(ctx, "udp", address)
}

func isEvery(host string) bool { return host == "" || host == "::" }

// both makes IPv6 sockets that accept IPv4 clients too. For "tcp" package net makes an IPv4 socket of [::] on a host
// without 127.0.0.1, where its test for mapped addresses fails.
var both = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0)
	})
	return errors.Join(err, os.NewSyscallError("setsockopt IPV6_V6ONLY", failed))
}}

// Advice returns the next step after a failure to listen on a port. sockets are the socket
// types for ss ("t", "tu"); alternative is what else the Service may get ("another node port").
func Advice(err error, port uint16, sockets, alternative string) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("stop the program that has it (`ss -%slnp sport = :%d` names it), or give the Service %s", sockets, port, alternative)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "give this host the address, or leave it out of --nodeport-addresses"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit of open files (LimitNOFILE)"
	case errors.Is(err, syscall.EACCES):
		return "let the program bind low ports (CAP_NET_BIND_SERVICE), or give the Service " + alternative
	}
	return "it is tried again every few seconds"
}
