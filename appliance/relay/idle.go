package relay

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// watchIdle resets a connection when nothing was received from either end for the time. Bytes are
// not counted here: the kernel knows the time of the last ones, and is asked when they could be that
// old, so a busy connection costs one look in that time. The caller holds the lock.
func (t *tcpPort) watchIdle(c *relayed, limit time.Duration) {
	c.idle = time.AfterFunc(limit, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if _, lives := t.conns[c]; !lives {
			return
		}
		silent := min(silence(c.client), silence(c.endpoint))
		if silent >= limit {
			c.reset()
			return
		}
		c.idle.Reset(limit - silent)
	})
}

// silence asks the kernel for how long an end has sent nothing; 0 when the connection is closed.
func silence(c *net.TCPConn) (d time.Duration) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { // of a closed connection there is nothing to know
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			d = time.Duration(info.Last_data_recv) * time.Millisecond
		}
	})
	return d
}
