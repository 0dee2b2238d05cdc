package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errNoAnswer means that an endpoint did not accept a connection in time.
var errNoAnswer = errors.New("it did not accept in time")

// prepareSocket sets what a socket needs before it connects, as net.Dialer.Control.
type prepareSocket func(network, address string, c syscall.RawConn) error

// dial connects to an endpoint, which has timeout to accept; prepare may be nil. A connection that the kernel has established when the
// time is over counts, even if the program has not noticed yet: a program that waits for a CPU, as after a hand-over on a busy box,
// would otherwise take its own delay for the endpoint's. (The deadline of a net.Dialer wins over a connection that is there.)
func dial(ctx context.Context, timeout time.Duration, prepare prepareSocket, source, to netip.AddrPort) (*net.TCPConn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var late *time.Timer
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveEvery, Interval: keepAliveEvery, Count: -1}, Control: func(network, address string, c syscall.RawConn) error {
		if late != nil {
			late.Stop() // of another socket, before net tries once more
		}
		late = time.AfterFunc(timeout, func() { giveUp(c, cancel) })
		if prepare == nil {
			return nil
		}
		return prepare(network, address, c)
	}}
	endpoint, err := dialer.DialTCP(ctx, "tcp", source, to)
	if late != nil {
		late.Stop()
	}
	if err != nil && errors.Is(context.Cause(ctx), errNoAnswer) {
		return nil, fmt.Errorf("connect to %s: %w", to, errNoAnswer)
	}
	return endpoint, err
}

// giveUp cancels a connect whose time is over, unless it is established.
func giveUp(c syscall.RawConn, cancel context.CancelCauseFunc) {
	connected := false
	err := c.Control(func(fd uintptr) {
		_, err := unix.Getpeername(int(fd))
		connected = err == nil
	})
	if err == nil && !connected {
		cancel(errNoAnswer)
	}
}

// keepAliveEvery is after how long a silent peer is asked whether it is there, and how often.
const keepAliveEvery = 15 * time.Second

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// networkOf is the network name for package net, as in "tcp4".
func networkOf(protocol string, addr netip.Addr) string {
	if addr.Is4() {
		return protocol + "4"
	}
	return protocol + "6"
}
