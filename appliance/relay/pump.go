package relay

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// chunk is the size of a copy, in bytes. A peer that sends as many has more to send, and that is
	// spliced.
	chunk = 16 << 10
	// pipeSize is the capacity of a pipe, in bytes. It is smaller when an unprivileged user has reached
	// fs.pipe-user-pages-soft.
	pipeSize = 512 << 10
	// idlePipes bounds the unused pipes that are kept for later connections.
	idlePipes = 64
)

// pump has the buffers and pipes for copying. They do not belong to connections: one that waits for bytes has none.
type pump struct {
	buffers sync.Pool // of *[chunk]byte
	pipes   chan *pipe
	limit   int64
	made    atomic.Int64
}

// pipe is one of pipe(2), empty while it is in the pump.
type pipe struct{ r, w int }

// pipe returns an empty pipe; nil: there are too many, or the system has none.
func (u *pump) pipe() *pipe {
	select {
	case p := <-u.pipes:
		return p
	default:
	}
	var fds [2]int
	if u.made.Add(1) > u.limit || unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		u.made.Add(-1)
		return nil
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // a smaller one does too
	return &pipe{fds[0], fds[1]}
}

// back takes a pipe that is empty.
func (u *pump) back(p *pipe) {
	select {
	case u.pipes <- p:
	default:
		u.drop(p)
	}
}

func (u *pump) drop(p *pipe) {
	_, _ = unix.Close(p.r), unix.Close(p.w) // nothing is lost that anybody waits for
	u.made.Add(-1)
}

// close closes the pipes that are kept.
func (u *pump) close() {
	for {
		select {
		case p := <-u.pipes:
			u.drop(p)
		default:
			return
		}
	}
}

// way is one direction of a connection. One goroutine uses it.
type way struct {
	pump     *pump
	from, to *net.TCPConn
	source   syscall.RawConn // of from
	sink     syscall.RawConn // of to

	held  []byte       // came and was not passed on yet
	buf   *[chunk]byte // of held; nil: held is no buffer of the pump
	pipe  *pipe        // with so many bytes that were not passed on yet
	piped int
	bulk  bool // the last bytes filled a buffer
	ended bool // from has sent its FIN
	done  bool // to got it
}

func (u *pump) way(to, from *net.TCPConn) (*way, error) {
	source, err := from.SyscallConn()
	if err != nil {
		return nil, err
	}
	sink, err := to.SyscallConn()
	return &way{pump: u, from: from, to: to, source: source, sink: sink}, err
}

// run passes on the bytes that come, and a FIN as a FIN. After an error it can go on where it was: no byte that came
// is lost. last reports, at the end, that the other direction has ended, so that closing sends the FIN.
func (w *way) run(last func() bool) error {
	for !w.done {
		if err := w.drain(); err != nil {
			return err
		}
		if w.ended {
			if !last() {
				if err := w.to.CloseWrite(); err != nil {
					return err
				}
			}
			w.done = true
			continue
		}
		if err := w.fill(); err != nil {
			return err
		}
	}
	return nil
}

// fill waits for bytes, or the end, and takes them: into a pipe when they are many.
func (w *way) fill() error {
	var failed error
	err := w.source.Read(func(fd uintptr) (done bool) {
		for {
			var n int
			n, failed = w.take(int(fd))
			switch {
			case failed == unix.EINTR:
				continue
			case failed == unix.EAGAIN:
				return false
			case failed == nil && n == 0:
				w.ended = true
			}
			return true
		}
	})
	if err == nil && failed != nil {
		err = os.NewSyscallError("read", failed)
	}
	return err
}

// take takes bytes that are there.
func (w *way) take(fd int) (n int, err error) {
	if w.bulk {
		if p := w.pump.pipe(); p != nil {
			taken, err := unix.Splice(fd, nil, p.w, nil, pipeSize, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			if err != nil || taken == 0 {
				w.pump.back(p)
				return 0, err
			}
			w.pipe, w.piped, w.bulk = p, int(taken), taken >= chunk
			return w.piped, nil
		}
	}
	buf := w.pump.buffers.Get().(*[chunk]byte)
	if n, err = unix.Read(fd, buf[:]); err != nil || n <= 0 {
		w.pump.buffers.Put(buf)
		return 0, err
	}
	w.buf, w.held, w.bulk = buf, buf[:n], n == chunk
	return n, nil
}

// drain passes on what came.
func (w *way) drain() error {
	if len(w.held) == 0 && w.piped == 0 {
		return nil
	}
	var failed error
	err := w.sink.Write(func(fd uintptr) (done bool) {
		for len(w.held) > 0 || w.piped > 0 {
			switch failed = w.give(int(fd)); failed {
			case nil, unix.EINTR:
			case unix.EAGAIN:
				return false
			default:
				return true
			}
		}
		return true
	})
	if err == nil && failed != nil && failed != unix.EINTR {
		err = os.NewSyscallError("write", failed)
	}
	if err == nil {
		w.empty()
	}
	return err
}

// give passes on some of the bytes, as many as to takes now.
func (w *way) give(fd int) error {
	if len(w.held) > 0 {
		n, err := unix.Write(fd, w.held)
		w.held = w.held[max(n, 0):]
		return err
	}
	n, err := unix.Splice(w.pipe.r, nil, fd, nil, w.piped, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	if err == nil && n == 0 {
		return io.ErrUnexpectedEOF
	}
	w.piped -= int(max(n, 0))
	return err
}

// empty gives back the buffer and the pipe while nothing is to be passed on.
func (w *way) empty() {
	if w.buf != nil {
		w.pump.buffers.Put(w.buf)
	}
	if w.pipe != nil {
		w.pump.back(w.pipe)
	}
	w.buf, w.held, w.pipe = nil, nil, nil
}

// close drops what was not passed on.
func (w *way) close() {
	if w.pipe != nil {
		w.pump.drop(w.pipe)
	}
	w.pipe, w.piped = nil, 0
	w.empty()
}

// rest takes what was not passed on out of the way's buffers.
func (w *way) rest() ([]byte, error) {
	rest := append([]byte(nil), w.held...)
	for w.piped > 0 {
		b := make([]byte, w.piped)
		n, err := unix.Read(w.pipe.r, b)
		if err != nil || n == 0 {
			return nil, errors.Join(os.NewSyscallError("read", err), io.ErrUnexpectedEOF)
		}
		rest, w.piped = append(rest, b[:n]...), w.piped-n
	}
	w.empty()
	return rest, nil
}
