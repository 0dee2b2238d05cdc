package prober

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/health"
)

// network sends probes over real sockets. It opens all TCP connections without a goroutine for each, and waits for them with epoll. A TCP check ends
// when its connection is open; other checks continue in a goroutine.
type network struct {
	ports Ports
	done  func([]answer)
	queue *os.File // the epoll instance
	fd    int      // file descriptor of queue
	pings pings
	names sessions

	mu      sync.Mutex
	opening map[uint64]opening // connections being opened, by serial number of the probe
	talking map[uint64]*conn
	closed  bool
	wg      sync.WaitGroup
}

// opening is a TCP connection whose handshake is under way.
type opening struct {
	probe
	fd    int
	began time.Time
}

func newNetwork(ports Ports, done func([]answer)) (*network, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	// Non-blocking, so that the runtime waits for it as for any socket.
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	n := &network{
		ports: ports, done: done, queue: os.NewFile(uintptr(fd), "epoll"), fd: fd,
		opening: map[uint64]opening{}, talking: map[uint64]*conn{}, names: sessions{new(sync.Mutex), map[sessionKey]session{}},
	}
	n.wg.Go(n.collect)
	return n, nil
}

// begin implements asker: it starts probes, and passes their answers to n.done.
func (n *network) begin(probes []probe) {
	var ended []answer
	for _, p := range probes {
		if p.target.check.recipe.err != nil {
			ended = append(ended, n.answer(p, failed(health.Void, p.target.check.recipe.err.Error()), time.Now()))
			continue
		}
		switch p.target.check.Kind {
		case health.UDP, health.DNS, health.ICMP:
			n.wg.Go(func() {
				began := time.Now() // of the timeout, however long this host took to come here
				n.done([]answer{n.answer(p, n.datagram(p, began.Add(p.target.check.Timeout)), began)})
			})
		default:
			if a, over := n.open(p); over {
				ended = append(ended, a)
			}
		}
	}
	if len(ended) > 0 {
		n.done(ended)
	}
}

// datagram makes a UDP, DNS or ICMP probe, and returns its result.
func (n *network) datagram(p probe, deadline time.Time) health.Result {
	if p.target.check.Kind == health.ICMP {
		return n.pings.ask(p.target, deadline)
	}
	fd, err := n.socket(p, unix.SOCK_DGRAM)
	if err != nil {
		return refusal(err)
	}
	c := n.adopt(p, fd, deadline)
	defer n.release(p.serial, c)
	if p.target.check.Kind == health.DNS {
		return askDNS(c, p.target.check)
	}
	return askUDP(c, p.target.check)
}

func (n *network) answer(p probe, r health.Result, began time.Time) answer {
	r.Took = time.Since(began)
	return answer{target: p.target, serial: p.serial, result: r}
}

// open starts to open the TCP connection of a probe. If that fails at once, it returns the answer and true.
func (n *network) open(p probe) (answer, bool) {
	o := opening{probe: p, began: time.Now()}
	fd, err := n.socket(p, unix.SOCK_STREAM)
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return n.answer(p, refusal(err), o.began), true
	}
	o.fd = fd
	n.mu.Lock()
	n.opening[p.serial] = o
	n.mu.Unlock()
	event := unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(p.serial), Pad: int32(p.serial >> 32)}
	if err := unix.EpollCtl(n.fd, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		if _, ours := n.claim(p.serial); ours {
			_ = unix.Close(fd)
			return n.answer(p, refusal(err), o.began), true
		}
	}
	return answer{}, false
}

// claim removes a connection from opening, so that only the caller continues with it. It returns false if another goroutine has claimed it before.
func (n *network) claim(serial uint64) (opening, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o, there := n.opening[serial]
	delete(n.opening, serial)
	return o, there
}

// collect waits with epoll for connections that have opened or failed, and continues their probes, until the epoll instance is closed.
func (n *network) collect() {
	raw, err := n.queue.SyscallConn()
	if err != nil {
		return
	}
	events := make([]unix.EpollEvent, 256)
	for {
		found := 0
		err := raw.Read(func(fd uintptr) bool {
			found, _ = unix.EpollWait(int(fd), events, 0)
			return found > 0
		})
		if err != nil {
			return
		}
		var ended []answer
		for _, e := range events[:found] {
			o, ours := n.claim(uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32)
			if !ours {
				continue
			}
			if a, over := n.opened(o, e.Events&(unix.EPOLLERR|unix.EPOLLHUP) != 0); over {
				ended = append(ended, a)
			}
		}
		if len(ended) > 0 {
			n.done(ended)
		}
	}
}

// opened continues a probe whose connection has opened, or failed if failure is set. If the probe is complete with that, it returns the answer and
// true.
func (n *network) opened(o opening, failure bool) (answer, bool) {
	if failure {
		errno, err := unix.GetsockoptInt(o.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && errno != 0 {
			err = syscall.Errno(errno)
		}
		if err != nil {
			_ = unix.Close(o.fd)
			return n.answer(o.probe, refusal(err), o.began), true
		}
	}
	if o.target.check.Kind == health.TCP {
		_ = unix.Close(o.fd) // with a reset, before the handshake is acknowledged
		return n.answer(o.probe, health.Result{}, o.began), true
	}
	if err := unix.EpollCtl(n.fd, unix.EPOLL_CTL_DEL, o.fd, nil); err != nil {
		_ = unix.Close(o.fd)
		return n.answer(o.probe, refusal(err), o.began), true
	}
	c := n.adopt(o.probe, o.fd, o.began.Add(o.target.check.Timeout))
	n.wg.Go(func() {
		a := n.talk(c, o.target)
		n.release(o.serial, c)
		a.target, a.serial, a.result.Took = o.target, o.serial, time.Since(o.began)
		n.done([]answer{a})
	})
	return answer{}, false
}

// talk makes an HTTP, HTTPS, gRPC or TLS probe over an open connection, and returns its answer.
func (n *network) talk(c *conn, t *target) answer {
	switch t.check.Kind {
	case health.HTTP:
		return answer{result: askHTTP(c, t)}
	case health.GRPC:
		return answer{result: askGRPC(c, t)}
	}
	secured, expires, r := n.names.handshake(c, t)
	if r.Outcome == health.Pass && t.check.Kind == health.HTTPS {
		r = askHTTP(secured, t)
	}
	return answer{result: r, expires: expires}
}

// expire ends the probes with the given serial numbers whose connections have not opened. Probes with an open connection end by its deadline.
func (n *network) expire(serials []uint64) {
	var ended []answer
	for _, serial := range serials {
		o, ours := n.claim(serial)
		if !ours {
			continue // its goroutine has a deadline
		}
		// It may have opened between two looks.
		ready := []unix.PollFd{{Fd: int32(o.fd), Events: unix.POLLOUT}}
		if found, _ := unix.Poll(ready, 0); found > 0 {
			if a, over := n.opened(o, ready[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0); over {
				ended = append(ended, a)
			}
			continue
		}
		_ = unix.Close(o.fd)
		ended = append(ended, n.answer(o.probe, silence(o.target.check, ""), o.began))
	}
	if len(ended) > 0 {
		n.done(ended)
	}
}

// close implements asker: it ends all probes, and waits for their goroutines.
func (n *network) close() {
	n.mu.Lock()
	n.closed = true
	for _, o := range n.opening {
		_ = unix.Close(o.fd)
	}
	clear(n.opening)
	for _, c := range n.talking {
		_ = c.SetDeadline(time.Unix(1, 0))
	}
	n.mu.Unlock()
	n.pings.close()
	_ = n.queue.Close()
	n.wg.Wait()
}
