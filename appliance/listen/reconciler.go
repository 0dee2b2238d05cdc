package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"svcctl.io/svcctl/appliance/task"
)

// Reconciler runs a function when the desired state has changed. P is the type of the
// problems. All methods may be called concurrently.
type Reconciler[P comparable] struct {
	retry   time.Duration
	trigger chan struct{} // capacity 1: the desired state has changed
	changed chan struct{} // capacity 1: the problems have changed

	mu       sync.Mutex
	problems []P
}

// NewReconciler returns a Reconciler that retries at the given interval.
func NewReconciler[P comparable](retry time.Duration) *Reconciler[P] {
	return &Reconciler[P]{retry: retry, trigger: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
}

// Trigger makes Run call its function soon.
func (r *Reconciler[P]) Trigger() { task.Wake(r.trigger) }

// Pending reports whether Run has not yet processed the last Trigger.
func (r *Reconciler[P]) Pending() bool { return len(r.trigger) > 0 }

// Problems returns the problems of the last run.
func (r *Reconciler[P]) Problems() []P {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.problems)
}

// Changed returns a channel that receives a value after Problems has changed.
func (r *Reconciler[P]) Changed() <-chan struct{} { return r.changed }

// Run calls reconcile at once, after each Trigger, and after the retry interval if reconcile requested a retry, until ctx is done. reconcile must
// return its problems in a stable order.
func (r *Reconciler[P]) Run(ctx context.Context, reconcile func() (problems []P, retry bool)) {
	task.Repeat(ctx, r.trigger, func() (next time.Time) {
		problems, retry := reconcile()
		r.publish(problems)
		if retry {
			next = time.Now().Add(r.retry)
		}
		return next
	})
}

func (r *Reconciler[P]) publish(problems []P) {
	r.mu.Lock()
	same := slices.Equal(problems, r.problems)
	r.problems = problems
	r.mu.Unlock()
	if !same {
		task.Wake(r.changed)
	}
}

// TCP listens on host:port. An empty host and [::] stand for all addresses of both families.
func TCP(ctx context.Context, address string) (net.Listener, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && isEvery(host) {
		if l, err := both.Listen(ctx, "tcp6", net.JoinHostPort("::", port)); !errors.Is(err, syscall.EAFNOSUPPORT) { // a kernel without IPv6
			return l, err
		}
	}
	return new(net.ListenConfig).Listen(ctx, "tcp", address)
}

// UDP opens a socket on host:port. An empty host and [::] stand for all addresses of both families.
func UDP(ctx context.Context, address string) (net.PacketConn, error) {
	if host, port, err := net.SplitHostPort(address); err == nil && isEvery(host) {
		if c, err := both.ListenPacket(ctx, "udp6", net.JoinHostPort("::", port)); !errors.Is(err, syscall.EAFNOSUPPORT) {
			return c, err
		}
	}
	return new(net.ListenConfig).ListenPacket(ctx, "udp", address)
}

func isEvery(host string) bool { return host == "" || host == "::" }

// both creates IPv6 sockets that accept IPv4 clients too. It is needed because package net listens only on IPv4 for "tcp" on a host without
// 127.0.0.1, where its test for IPv4-mapped addresses fails.
var both = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	return Control(c, func(fd int) error {
		return os.NewSyscallError("setsockopt IPV6_V6ONLY", syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, syscall.IPV6_V6ONLY, 0))
	})
}}

// Control calls f with the descriptor of a socket. It returns the error of f, or an error if the socket is closed.
func Control(c syscall.RawConn, f func(fd int) error) (err error) {
	closed := c.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(closed, err)
}

// ControlOf calls Control for the socket of a connection.
func ControlOf(c syscall.Conn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return Control(raw, f)
}

// Advice returns the next step for the user after a failure to listen on a port. sockets are the socket types for ss ("t", "tu");
// alternative is another port or address for the Service ("another node port").
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
