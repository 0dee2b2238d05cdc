package rest

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/api/auth"
)

// Limits on the memory that bodies of requests take. A client decides how long a body is
// and how slowly it comes, so without them a few hundred connections hold a gigabyte.
const (
	// smallBody is the longest body of a review, DeleteOptions included, and what every
	// request may send whatever the others hold: small requests are never refused.
	smallBody = 64 << 10
	// maxBodies bounds the bytes of all larger bodies together, of which clients that may
	// only read get half.
	maxBodies = 64 << 20
	// smallBodyTime bounds the time of reading a body of at most smallBody.
	smallBodyTime = 10 * time.Second
	// firstPiece is the room that a body starts with. It doubles as bytes arrive: what
	// Content-Length promises reserves nothing.
	firstPiece = 4 << 10
)

// bodies counts the bytes that bodies of requests hold above smallBody each.
type bodies struct{ held atomic.Int64 }

// take counts n more bytes in; false when they would be more than most.
func (b *bodies) take(n, most int64) bool {
	if b.held.Add(n) > most {
		b.held.Add(-n)
		return false
	}
	return true
}

// read reads the body of a request up to a length in bytes. Its bytes count until the
// request is answered, for what is decoded from them lives as long.
func (b *bodies) read(r *request, most int64) ([]byte, error) {
	limit := fmt.Sprintf("limit is %d", most)
	if r.http.ContentLength > most {
		return nil, tooLarge(limit)
	}
	budget := int64(maxBodies)
	if r.user.Role != auth.Admin {
		budget /= 2
	}
	body := make([]byte, 0, min(firstPiece, most+1))
	for {
		if len(body) == cap(body) {
			if int64(len(body)) > most {
				return nil, tooLarge(limit)
			}
			room := min(2*int64(cap(body)), most+1)
			if more := room - max(smallBody, int64(cap(body))); more > 0 {
				if !b.take(more, budget) {
					return nil, tooManyRequests("the bodies of other requests fill the memory that there is for them: try again later", busyRetry)
				}
				r.held += more
			}
			body = append(make([]byte, 0, room), body...)
		}
		n, err := r.http.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		var tooLong *http.MaxBytesError
		switch {
		case errors.Is(err, io.EOF) && int64(len(body)) > most:
			return nil, tooLarge(limit)
		case errors.Is(err, io.EOF):
			return body, nil
		case errors.As(err, &tooLong):
			return nil, err
		case err != nil:
			return nil, badRequest("the body of the request could not be read to its end: %v", err)
		}
	}
}

// readSmall is read for what is never long, and in a shorter time.
func (b *bodies) readSmall(w http.ResponseWriter, r *request) ([]byte, error) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(smallBodyTime))
	return b.read(r, smallBody)
}
