package tlsterm

import (
	"errors"
	"io"
	"sync"
)

// The buffers of a direction. A connection that is idle has the small one: of the large ones there are as
// many as directions that are busy.
const (
	smallBuffer = 2 << 10
	largeBuffer = 32 << 10 // two records of TLS (RFC 8446, 5.1)
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// Join copies both directions until both have ended. What one end closes is closed towards the other end. After an
// error in one direction, an end of TLS without a close_notify among them, reset is called, which has to
// end both.
func Join(a, b Conn, reset func()) {
	var back sync.WaitGroup
	back.Go(func() { pass(a, b, reset) })
	pass(b, a, reset)
	back.Wait()
}

func pass(to, from Conn, reset func()) {
	err := copyAll(to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		reset()
	}
}

// copyAll copies until from ends.
func copyAll(to io.Writer, from io.Reader) error {
	small := make([]byte, smallBuffer)
	buffer := small
	var large *[largeBuffer]byte
	release := func() {
		if large != nil {
			largeBuffers.Put(large)
			large, buffer = nil, small
		}
	}
	defer release()
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case large == nil && n == smallBuffer:
			large = largeBuffers.Get().(*[largeBuffer]byte)
			buffer = large[:]
		case large != nil && n < smallBuffer:
			release()
		}
	}
}
