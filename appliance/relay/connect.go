package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errNoEndpoint means that a Port has no endpoint.
var errNoEndpoint = errors.New("there is no endpoint")

// attempt is one connection to an endpoint for a client.
type attempt struct {
	to   netip.AddrPort
	conn *net.TCPConn
	err  error
	took time.Duration
}

// connect connects to an endpoint for a client whose connection is near: to another one if that refuses or does not answer in time, and
// beside it if it has not answered after hedge.begin. The first that accepts wins. No endpoint is tried twice, and no more others than
// Port.Retries; those that refused or were overtaken are tried last for a while, or until they accept. The connection counts as open until end, or until
// balancer.done.
func (t *tcpPort) connect(ctx context.Context, near *net.TCPConn, client, asked netip.AddrPort) (*net.TCPConn, netip.AddrPort, error) {
	how := t.current().Connect
	if how.Timeout <= 0 {
		how.Timeout = t.shared.limits.dial
	}
	hops, counted := hopsLeft(hopsOf(near))
	if !counted {
		hops = -1
	}
	results, over := make(chan attempt), make(chan struct{})
	defer close(over)
	// Attempts that are overtaken go on: one that is accepted after all shows that its endpoint, or this box, was only slow.
	dialing, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()

	var tried, waiting, beside []netip.AddrPort // in their order; those of beside were begun beside others
	begin := func() bool {
		if len(tried) > how.Retries {
			return false
		}
		to, is := t.endpoints.pick(client, asked, tried...)
		if !is {
			return false
		}
		tried, waiting = append(tried, to), append(waiting, to)
		go func() {
			a := t.attempt(dialing, how, client, to, hops)
			select {
			case results <- a:
			case <-over:
				if a.conn != nil {
					reset(a.conn)
					t.endpoints.trust(to)
				}
				t.endpoints.done(to)
			}
		}()
		return true
	}
	failed, pause := errNoEndpoint, t.hedge.begin(t.shared.limits.hedge)
	patience := time.NewTimer(pause)
	defer patience.Stop()
	for more := begin(); more; {
		select {
		case <-patience.C:
			if t.hedge.may() && begin() {
				beside = append(beside, tried[len(tried)-1])
				patience.Reset(pause)
			}
		case a := <-results:
			at := slices.Index(waiting, a.to)
			if a.err == nil {
				t.overtaken(waiting[:at])
				t.endpoints.accepted(client, a.to)
				t.hedge.took(a.took, countIn(beside, tried[slices.Index(tried, a.to)+1:]))
				return a.conn, a.to, nil
			}
			t.endpoints.done(a.to)
			waiting = slices.Delete(waiting, at, at+1)
			if failed = a.err; ctx.Err() != nil {
				more = false // the client left, or the program is handed over: the endpoint is not at fault
				continue
			}
			t.overtaken([]netip.AddrPort{a.to})
			if begin() {
				patience.Reset(pause)
			}
			more = len(waiting) > 0
		}
	}
	cancel(failed)
	return nil, netip.AddrPort{}, fmt.Errorf("%d endpoints tried: %w", len(tried), failed)
}

// attempt connects to one endpoint.
func (t *tcpPort) attempt(ctx context.Context, how Connect, client, to netip.AddrPort, hops int) attempt {
	var source netip.AddrPort
	transparent := how.Transparent && client.Addr() != to.Addr() && client.Addr().Is4() == to.Addr().Is4()
	if transparent {
		source = netip.AddrPortFrom(client.Addr(), 0)
	}
	prepare := func(network, address string, c syscall.RawConn) error {
		if hops >= 0 {
			if err := sendHops(network, c, hops); err != nil {
				return err
			}
		}
		if transparent {
			return asOthers(network, address, c)
		}
		return nil
	}
	began := time.Now()
	conn, err := dial(ctx, how.Timeout, prepare, source, to)
	return attempt{to, conn, err, time.Since(began)}
}

// overtaken notes endpoints that did not accept a connection, or not before another one did.
func (t *tcpPort) overtaken(endpoints []netip.AddrPort) {
	for _, e := range endpoints {
		t.endpoints.suspect(e, t.shared.limits.last)
		t.shared.failedConnects.Add(1)
		t.failedConnects.Add(1)
	}
}

// countIn counts the endpoints of a list that are in another one.
func countIn(list, other []netip.AddrPort) (n int) {
	for _, e := range list {
		if slices.Contains(other, e) {
			n++
		}
	}
	return n
}

const (
	// vainShare bounds the attempts beside others that were in vain, in parts of the connections: endpoints that are all slow
	// would get every connection twice.
	vainShare = 0.2
	// vainBurst is the number of those that are made before connections have earned them.
	vainBurst = 20
)

// hedge decides when a connection to an endpoint that has not accepted yet gets an attempt at another one beside it. The
// zero value has no connects yet.
type hedge struct {
	mu   sync.Mutex
	mean time.Duration // of connects, the newest ones with the most weight
	vain float64       // attempts in vain, less what connections have earned
}

// begin counts a connection, and returns after what time without an answer another attempt begins, at least the time least.
func (h *hedge) begin(least time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vain = max(h.vain-vainShare, 0)
	return max(least, 2*h.mean)
}

// may reports whether another attempt may be in vain.
func (h *hedge) may() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.vain < vainBurst
}

// took notes the duration of a connect, and how many attempts beside it were in vain.
func (h *hedge) took(d time.Duration, vain int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.vain += float64(vain); h.mean == 0 {
		h.mean = d
		return
	}
	h.mean += (d - h.mean) / 8
}

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

// asOthers lets a socket have an address that this host does not have (ip(7), IP_TRANSPARENT), and a port
// that the kernel finds while it connects (IP_BIND_ADDRESS_NO_PORT).
func asOthers(network, _ string, c syscall.RawConn) (err error) {
	level, option := unix.SOL_IP, unix.IP_TRANSPARENT
	if network == "tcp6" {
		level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	failed := c.Control(func(fd uintptr) {
		if err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), level, option, 1)); err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1))
		}
	})
	if err == nil {
		err = failed
	}
	return err
}

// Origin finds what a UDP client sent to before the kernel redirected it to one of the listeners.
type Origin func(listener, client netip.AddrPort) (netip.AddrPort, error)

// originalDestination returns the address that a client connected to before the kernel redirected it
// (SO_ORIGINAL_DST of linux/netfilter_ipv4.h, IP6T_SO_ORIGINAL_DST of linux/netfilter_ipv6/ip6_tables.h).
func originalDestination(client *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := client.SyscallConn()
	if err != nil {
		return to, err
	}
	v6 := client.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().Is6()
	var failed error
	err = raw.Control(func(fd uintptr) {
		if v6 {
			// The struct begins with a sockaddr_in6, and is no smaller.
			info, err := unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, unix.SO_ORIGINAL_DST)
			if failed = err; err == nil {
				to = netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, info.Addr.Port)))
			}
			return
		}
		// A struct of 20 bytes, which a sockaddr_in of 16 fits into: family, port, address.
		raw, err := unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, unix.SO_ORIGINAL_DST)
		if failed = err; err == nil {
			b := raw.Multiaddr
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	if failed != nil {
		err = os.NewSyscallError("getsockopt", failed)
	}
	return to, err
}
