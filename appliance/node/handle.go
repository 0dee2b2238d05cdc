package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// limit is how long a request, and each part of its answer, may take. The kernel answers within the call that
	// sends the request, so nothing waits unless an answer or the runtime's notice of it is lost: after EAGAIN, as
	// after a failed allocation, the library waits for an edge of the poller that does not come.
	limit = time.Second
	// attempts is how often a call is made that fails for a transient reason.
	attempts = 5
)

// The functions of the library open a socket for each call, with a limit of a minute unless it is set here: those
// that appliance/routes, appliance/sockets and appliance/announce/bgp call.
func init() {
	if err := netlink.SetSocketTimeout(limit); err != nil {
		panic(err)
	}
}

// open gives a handle of the network namespace of the calling thread, the calls of which end within limit. The library
// sets none.
func open() (*netlink.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	if err := h.SetSocketTimeout(limit); err != nil {
		h.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return h, nil
}

// Try makes a call of netlink, and again after a transient error, 5 times at most.
func Try[T any](call func() (T, error)) (result T, err error) {
	for range attempts {
		if result, err = call(); !isPassing(err) {
			break
		}
	}
	return result, err
}

// try is Try with a handle that is open for it.
func try[T any](call func(*netlink.Handle) (T, error)) (result T, err error) {
	h, err := open()
	if err != nil {
		return result, err
	}
	defer h.Close()
	return Try(func() (T, error) { return call(h) })
}

// isPassing reports whether an error is transient: the kernel was interrupted or out of memory, the limit expired
// (EAGAIN), or the answer to a request whose limit expired has not been read to its end (EBUSY).
func isPassing(err error) bool {
	for _, errno := range []error{unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}
