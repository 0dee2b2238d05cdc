package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

// The time of an endpoint that has accepted is not over, however late that is seen; of another one it is.
func TestTimeToAccept(t *testing.T) {
	families(t, func(t *testing.T, addr netip.Addr) {
		c := dialTCP(t, namedTCP(t, addr, "a"))
		raw, err := c.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		if giveUp(raw, cancel); ctx.Err() != nil {
			t.Errorf("an established connection is given up: %v", context.Cause(ctx))
		}
		_ = c.Close()
		if giveUp(raw, cancel); ctx.Err() != nil {
			t.Errorf("a closed one is given up: %v", context.Cause(ctx))
		}
	})
	silent := deaf(t)
	var waiting syscall.RawConn
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ended := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		_, err := dial(ctx, patience, func(_, _ string, c syscall.RawConn) error {
			waiting = c
			close(begun)
			return nil
		}, netip.AddrPort{}, silent)
		ended <- err
	}()
	<-begun
	if giveUp(waiting, cancel); !errors.Is(context.Cause(ctx), errNoAnswer) {
		t.Errorf("one that waits is not given up: %v", context.Cause(ctx))
	}
	if err := <-ended; !errors.Is(err, errNoAnswer) {
		t.Errorf("it ends with %v", err)
	}
	if _, err := dial(t.Context(), time.Millisecond, nil, netip.AddrPort{}, silent); !errors.Is(err, errNoAnswer) {
		t.Errorf("an endpoint that does not accept: %v", err)
	}
	if _, err := dial(t.Context(), patience, nil, netip.AddrPort{}, freePort(t, local)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("an endpoint that refuses: %v", err)
	}
	if c, err := dial(t.Context(), patience, func(string, string, syscall.RawConn) error { return net.ErrClosed }, netip.AddrPort{}, silent); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a socket that cannot be prepared: %v, %v", c, err)
	}
}
