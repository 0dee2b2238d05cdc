package httpproxy

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
	"time"
)

// A body that drips would keep a connection without end. So a client may have its reader wait for bodyTime in all, and longer by
// a second for each bodyRate bytes that came. Time in which the endpoint takes nothing does not count.
const (
	bodyTime = 30 * time.Second
	bodyRate = 500 // bytes a second
)

// errSlowBody means that the body of a request came more slowly than bodyRate.
var errSlowBody = errors.New("the body of the request came too slowly")

// timedBody is the body of a request, whose client has to send at a least rate. One goroutine reads it; slow is set when the
// time is over.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
	grace   time.Duration
	waited  time.Duration
	came    int64
	slow    atomic.Bool
}

func (b *timedBody) Read(buf []byte) (int, error) {
	began := time.Now()
	left := b.grace + time.Duration(b.came/bodyRate)*time.Second - b.waited
	if err := b.control.SetReadDeadline(began.Add(left)); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(buf)
	b.came += int64(n)
	b.waited += time.Since(began)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.slow.Store(true)
		return n, errSlowBody
	case err == io.EOF: // the answer may take longer; else the server discards the rest in this time
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
