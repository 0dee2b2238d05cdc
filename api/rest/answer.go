package rest

import (
	"compress/gzip"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// gzipFrom is the length from which an answer is compressed for clients that accept it
	// (defaultGzipThresholdBytes of the API server of Kubernetes). It also bounds the bytes of an
	// answer that are held in memory.
	gzipFrom = 128 << 10
	// patience bounds the time in which a client takes one write.
	patience = 30 * time.Second
)

var (
	buffers = sync.Pool{New: func() any { return new([gzipFrom]byte) }}
	// zippers compress fast rather than well, as the answers go over a short way.
	zippers = sync.Pool{New: func() any {
		z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed)
		return z
	}}
)

// answer is the body of an answer of any length, of which it holds a part in memory:
// short ones are sent with their length, long ones in chunks, and compressed if the client
// wants that. A client that is too slow to take it is given up.
type answer struct {
	w       http.ResponseWriter
	control *http.ResponseController
	code    int
	zip     bool // as soon as it is long
	buffer  *[gzipFrom]byte
	used    int
	begun   bool
	zipper  *gzip.Writer
	err     error
}

// newAnswer begins an answer, whose headers but those of its length are set already. It has
// to be closed.
func newAnswer(w http.ResponseWriter, r *http.Request, code int) *answer {
	a := &answer{
		w: w, control: http.NewResponseController(w), code: code,
		zip:    asksFor(r.Header.Values("Accept-Encoding"), "gzip"),
		buffer: buffers.Get().(*[gzipFrom]byte),
	}
	if r.ContentLength == 0 {
		// The time for reading the request would end its context in the middle of a long answer. It
		// stays for requests whose body is not read yet.
		_ = a.control.SetReadDeadline(time.Time{})
	}
	return a
}

// Write implements io.Writer.
func (a *answer) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && a.err == nil; {
		if a.used == len(a.buffer) {
			a.begin()
			a.flush()
		}
		n := copy(a.buffer[a.used:], rest)
		a.used += n
		rest = rest[n:]
	}
	return len(p), a.err
}

// begin sends the headers of an answer that is too long to be held.
func (a *answer) begin() {
	if a.begun {
		return
	}
	a.begun = true
	if a.zip {
		a.w.Header().Set("Content-Encoding", "gzip")
		a.w.Header().Add("Vary", "Accept-Encoding")
		a.zipper = zippers.Get().(*gzip.Writer)
		a.zipper.Reset(a.w)
	}
	a.w.WriteHeader(a.code)
}

// flush writes what is held.
func (a *answer) flush() {
	_ = a.control.SetWriteDeadline(time.Now().Add(patience))
	if a.zipper != nil {
		_, a.err = a.zipper.Write(a.buffer[:a.used])
	} else {
		_, a.err = a.w.Write(a.buffer[:a.used])
	}
	a.used = 0
}

// Close ends the answer. A client that hung up is no error.
func (a *answer) Close() {
	if !a.begun {
		a.begun = true
		a.w.Header().Set("Content-Length", strconv.Itoa(a.used))
		a.w.WriteHeader(a.code)
	}
	if a.err == nil {
		a.flush()
	}
	if a.err == nil && a.zipper != nil {
		_ = a.zipper.Close()
	}
	a.drop()
}

// drop gives up what is not written yet.
func (a *answer) drop() {
	if a.zipper != nil {
		a.zipper.Reset(nil)
		zippers.Put(a.zipper)
		a.zipper = nil
	}
	buffers.Put(a.buffer)
	a.buffer = nil
}
