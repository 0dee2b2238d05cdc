package prober

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"svcctl.io/svcctl/appliance/health"
)

const (
	// maxHeader and maxBody are how much of an answer is read, in bytes.
	maxHeader = 16 << 10
	maxBody   = 4 << 10
	// maxInformed bounds the answers of the class 1xx before the final one.
	maxInformed = 5
)

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 2048) }}

// askHTTP makes one GET request, and reads no further than it has to.
func askHTTP(c io.ReadWriter, t *target) health.Result {
	check := t.check
	request := check.recipe.before + cmp.Or(check.Host, t.addr.String()) + check.recipe.after
	if _, err := io.WriteString(c, request); err != nil {
		return broken(err, check, "an HTTP answer")
	}
	limited := &io.LimitedReader{R: c, N: maxHeader}
	source := &source{Reader: limited}
	r := readers.Get().(*bufio.Reader)
	r.Reset(source)
	defer func() {
		r.Reset(nil)
		readers.Put(r)
	}()
	response, err := readResponse(r)
	switch {
	case err != nil && limited.N == 0:
		return failed(health.Refused, fmt.Sprintf("the HTTP header is longer than %d KiB", maxHeader>>10))
	case err != nil && source.err != nil:
		return broken(source.err, check, "an HTTP answer")
	case err != nil:
		return broken(err, check, "an HTTP answer")
	case !check.recipe.passes(response.StatusCode):
		return failed(health.Refused, fmt.Sprintf("HTTP status %d", response.StatusCode))
	case check.Expect == "":
		return health.Result{}
	}
	limited.N = 4 * maxBody // with the sizes of chunks between
	source.err = nil        // the end of the header may have been the limit
	return expect(response.Body, check)
}

// source keeps the first error of a connection: bufio.Reader.ReadLine returns a truncated line as
// a whole one, without the error.
type source struct {
	io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.Reader.Read(b)
	s.err = err
	return n, err
}

// readResponse reads an answer to its body.
func readResponse(r *bufio.Reader) (*http.Response, error) {
	for range maxInformed {
		response, err := http.ReadResponse(r, nil)
		if err != nil || response.StatusCode >= http.StatusOK || response.StatusCode == http.StatusSwitchingProtocols {
			return response, err
		}
	}
	return nil, errors.New("too many answers of the class 1xx")
}

// expect looks for the text in the first bytes of a body, and stops where it is found.
func expect(body io.Reader, c *check) health.Result {
	got := make([]byte, 0, maxBody)
	for len(got) < maxBody {
		n, err := body.Read(got[len(got):maxBody])
		got = got[:len(got)+n]
		switch {
		case bytes.Contains(got, []byte(c.Expect)):
			return health.Result{}
		case errors.Is(err, io.EOF):
			return failed(health.Refused, "the body does not have the expected text")
		case err != nil:
			return broken(err, c, "the end of the body")
		}
	}
	return failed(health.Refused, fmt.Sprintf("the first %d KiB of the body do not have the expected text", maxBody>>10))
}
