package prober

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/health"
)

const (
	// maxHeader and maxBody bound the bytes of the header and the body of an HTTP response that are read.
	maxHeader = 16 << 10
	maxBody   = 4 << 10
	// maxInformed bounds the number of HTTP responses that are read in one probe, including 1xx responses.
	maxInformed = 5
)

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 2048) }}

// askHTTP sends one GET request and checks the status code, and the body if the check expects a text.
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

// source is a reader that keeps its first error. It is needed because bufio.Reader.ReadLine returns a line that an error truncated as if it were
// complete.
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

// readResponse reads the status and header of the final HTTP response, skipping 1xx ones.
func readResponse(r *bufio.Reader) (*http.Response, error) {
	for range maxInformed {
		response, err := http.ReadResponse(r, nil)
		if err != nil || response.StatusCode >= http.StatusOK || response.StatusCode == http.StatusSwitchingProtocols {
			return response, err
		}
	}
	return nil, errors.New("too many answers of the class 1xx")
}

// expect reads at most maxBody bytes of the body, until they contain the expected text, and returns the result of the check.
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

// sessions stores TLS sessions for resumption, which saves a quarter of the CPU time of a handshake. After sessionLife a session is no longer
// resumed, so that the server's certificate is verified again.
type sessions struct {
	mu    *sync.Mutex
	known map[sessionKey]session
}

// sessionKey identifies a stored TLS session. Checks that verify certificates do not resume sessions of checks that do not.
type sessionKey struct {
	addr   netip.AddrPort
	host   string
	verify bool
}

type session struct {
	state *tls.ClientSessionState
	until time.Time
}

const (
	// maxSessions is the maximum number of stored sessions, at some KiB each. sessionLife is the time during which a session can be resumed.
	maxSessions = 2048
	sessionLife = 10 * time.Minute
)

// cache implements tls.ClientSessionCache for one handshake.
type cache struct {
	sessions
	key sessionKey
}

func (c cache) Get(string) (*tls.ClientSessionState, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, there := c.known[c.key]
	if there && time.Now().After(s.until) {
		delete(c.known, c.key)
		return nil, false
	}
	return s.state, there
}

func (c cache) Put(_ string, state *tls.ClientSessionState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if state == nil {
		delete(c.known, c.key)
		return
	}
	s := session{state, time.Now().Add(sessionLife)}
	if before, there := c.known[c.key]; there {
		s.until = before.until // a resumed session does not show the certificate
	} else if len(c.known) >= maxSessions {
		for one := range c.known {
			delete(c.known, one)
			break
		}
	}
	c.known[c.key] = s
}

// handshake performs the TLS handshake on a connection. The time that it returns is the end of validity of the server's certificate, nil if the
// server sent none.
func (s sessions) handshake(c *conn, t *target) (*tls.Conn, *time.Time, health.Result) {
	secured := tls.Client(c, &tls.Config{
		ServerName:         cmp.Or(t.check.Host, t.addr.Addr().String()), // an address is not sent (RFC 6066), but verified
		InsecureSkipVerify: !t.check.Verify,
		MinVersion:         tls.VersionTLS12,
		// The post-quantum exchange costs more than the rest, and a check has no secret.
		CurvePreferences:   []tls.CurveID{tls.X25519, tls.CurveP256},
		ClientSessionCache: cache{s, sessionKey{t.addr, t.check.Host, t.check.Verify}},
	})
	if err := secured.Handshake(); err != nil {
		return nil, nil, tlsFailure(err, t.check)
	}
	if shown := secured.ConnectionState().PeerCertificates; len(shown) > 0 {
		return secured, &shown[0].NotAfter, health.Result{}
	}
	return secured, nil, health.Result{}
}

// tlsFailure returns the Result of a failed handshake. Its reason contains no text received from the server.
func tlsFailure(err error, c *check) health.Result {
	var (
		invalid x509.CertificateInvalidError
		name    x509.HostnameError
		unknown x509.UnknownAuthorityError
		record  tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return failed(health.Refused, "the certificate has expired or is not valid yet")
	case errors.As(err, &invalid):
		return failed(health.Refused, "the certificate is not valid")
	case errors.As(err, &name):
		return failed(health.Refused, "the certificate is for another name")
	case errors.As(err, &unknown):
		return failed(health.Refused, "the certificate is not signed by an authority that this host trusts")
	case errors.As(err, &record):
		return failed(health.Refused, "the answer is not TLS")
	}
	return broken(err, c, "a TLS handshake")
}

// askGRPC calls grpc.health.v1.Health/Check over HTTP/2 without TLS, per the gRPC Health Checking Protocol. The request and response messages are
// encoded and decoded by hand, as each has only one field.
func askGRPC(c *conn, t *target) health.Result {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	given := false
	transport := &http.Transport{
		Protocols: protocols,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if given {
				return nil, errors.New("one connection for each check")
			}
			given = true
			return c, nil
		},
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
	}
	defer transport.CloseIdleConnections()

	request, err := http.NewRequest(http.MethodPost, "http://"+t.addr.String()+"/grpc.health.v1.Health/Check", bytes.NewReader(grpcRequest(t.check.Name)))
	if err != nil {
		return failed(health.Void, "not asked: the check makes no request")
	}
	request.Host = cmp.Or(t.check.Host, t.addr.String())
	request.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "User-Agent": {"svcctl-health"}}
	response, err := transport.RoundTrip(request) // which follows no redirect
	if err != nil {
		return broken(err, t.check, "a gRPC answer")
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return failed(health.Refused, fmt.Sprintf("HTTP status %d", response.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return broken(err, t.check, "a gRPC answer")
	}
	if len(body) > maxBody {
		return failed(health.Refused, "the answer is too long for a health check of gRPC")
	}
	// An answer of trailers only has the status in its header.
	return grpcResult(cmp.Or(response.Trailer.Get("Grpc-Status"), response.Header.Get("Grpc-Status")), body)
}

// grpcRequest returns the encoded HealthCheckRequest{service: name} with its gRPC message prefix: a byte for "not compressed" and the length in four
// bytes.
func grpcRequest(name string) []byte {
	var message []byte
	if name != "" {
		message = append(binary.AppendUvarint([]byte{1<<3 | 2}, uint64(len(name))), name...)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// gRPC status codes that a health service may respond with, and the health status SERVING.
const (
	grpcNotFound      = 5
	grpcUnimplemented = 12
	serving           = 1
)

func grpcResult(status string, body []byte) health.Result {
	switch code, err := strconv.ParseUint(status, 10, 16); {
	case err != nil:
		return failed(health.Refused, "the answer is not gRPC")
	case code == grpcNotFound:
		return failed(health.Refused, "gRPC status 5: the server does not have this service")
	case code == grpcUnimplemented:
		return failed(health.Refused, "gRPC status 12: the server has no grpc.health.v1")
	case code != 0:
		return failed(health.Refused, fmt.Sprintf("gRPC status %d", code))
	}
	switch is, ok := grpcServing(body); {
	case !ok:
		return failed(health.Refused, "the answer is not of grpc.health.v1")
	case is != serving:
		return failed(health.Refused, fmt.Sprintf("not serving: grpc.health.v1 says %d", is))
	}
	return health.Result{}
}

// grpcServing decodes a HealthCheckResponse with its gRPC message prefix, and returns its field 1, the serving status. ok is false if the message is
// malformed.
func grpcServing(body []byte) (status uint64, ok bool) {
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-5 {
		return 0, false
	}
	for message := body[5:]; len(message) > 0; {
		tag, n := binary.Uvarint(message)
		if n <= 0 || tag&7 != 0 { // all it has is a number
			return 0, false
		}
		value, m := binary.Uvarint(message[n:])
		if m <= 0 {
			return 0, false
		}
		if tag>>3 == 1 {
			status = value
		}
		message = message[n+m:]
	}
	return status, true
}

// maxDatagram is the maximum number of bytes that are read of a UDP response.
const maxDatagram = 4 << 10

// askUDP sends a datagram and waits for a response with the expected text. If no text is expected, a timeout passes too. A refusal (ICMP port
// unreachable) fails.
func askUDP(c *conn, check *check) health.Result {
	if _, err := c.Write([]byte(check.Send)); err != nil {
		return refusal(err)
	}
	buffer := make([]byte, maxDatagram)
	for {
		switch n, err := c.Read(buffer); {
		case errors.Is(err, os.ErrDeadlineExceeded) && check.Expect == "":
			return health.Result{}
		case errors.Is(err, os.ErrDeadlineExceeded) && n == 0:
			return silence(check, "")
		case err != nil && !errors.Is(err, io.EOF): // an empty datagram reads as the end
			return refusal(err)
		case bytes.Contains(buffer[:n], []byte(check.Expect)):
			return health.Result{}
		}
	}
}

// askDNS sends a DNS query for the A records of the check's name. Any response with the code NOERROR passes.
func askDNS(c *conn, check *check) health.Result {
	question := new(dns.Msg).SetQuestion(dns.Fqdn(check.Name), dns.TypeA)
	packet, err := question.Pack()
	if err != nil {
		return failed(health.Void, "not asked: the name of the check is no DNS name")
	}
	if _, err := c.Write(packet); err != nil {
		return refusal(err)
	}
	buffer := make([]byte, maxDatagram)
	for {
		n, err := c.Read(buffer)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return silence(check, "")
		case err != nil && !errors.Is(err, io.EOF):
			return refusal(err)
		}
		var reply dns.Msg
		if err := reply.Unpack(buffer[:n]); err != nil || !reply.Response || reply.Id != question.Id {
			continue // not to this question
		}
		if reply.Rcode != dns.RcodeSuccess {
			name, is := dns.RcodeToString[reply.Rcode]
			if !is {
				name = fmt.Sprintf("with code %d", reply.Rcode)
			}
			return failed(health.Refused, "DNS answer "+name)
		}
		return health.Result{}
	}
}

// recipe holds the data that is computed once for all probes of a check.
type recipe struct {
	// err is the reason why the check cannot be made; nil if it can.
	err    error
	status []span // ranges of passing status codes
	// before and after are the parts of the HTTP request before and after the value of its Host header.
	before, after string
}

// span is a range of status codes, both ends included.
type span struct{ first, last int }

func newRecipe(c health.Check) (r recipe) {
	switch {
	case c.Kind < health.TCP || c.Kind > health.ICMP:
		r.err = fmt.Errorf("not asked: there is no check of the kind %d", c.Kind)
	case c.Interval <= 0 || c.Timeout <= 0:
		r.err = errors.New("not asked: the check has no interval or no timeout")
	case !validValue(c.Host):
		r.err = errors.New("not asked: the host of the check has a control character")
	case c.Kind == health.HTTP || c.Kind == health.HTTPS:
		r.err = r.http(c)
	}
	return r
}

// http builds the HTTP request of a check, and parses its ranges of status codes.
func (r *recipe) http(c health.Check) error {
	path := cmp.Or(c.Path, "/")
	if strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return errors.New("not asked: the path of the check has a blank or a control character")
	}
	if path[0] != '/' {
		return errors.New("not asked: the path of the check does not begin with /")
	}
	lines, named := "", map[string]bool{}
	for line := range strings.Lines(c.Headers) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		value = strings.Trim(value, " \t")
		if !validName(name) || !validValue(value) {
			return errors.New("not asked: a header of the check is not valid")
		}
		switch name := strings.ToLower(name); name {
		case "host", "connection", "content-length", "transfer-encoding", "upgrade", "expect":
			return fmt.Errorf("not asked: the header %s of the check is not its to set", name)
		default:
			named[name] = true
		}
		lines += name + ": " + value + "\r\n"
	}
	for _, own := range []string{"User-Agent: svcctl-health", "Accept: */*"} {
		if name, _, _ := strings.Cut(own, ":"); !named[strings.ToLower(name)] {
			lines += own + "\r\n"
		}
	}
	r.before = "GET " + path + " HTTP/1.1\r\nHost: "
	r.after = "\r\n" + lines + "Connection: close\r\n\r\n"
	var err error
	r.status, err = spans(c.Status)
	return err
}

// validName reports whether name is a valid HTTP header name: a token (RFC 9110, section 5.1).
func validName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// validValue reports whether value is a valid HTTP header value: it contains no control characters except tabs.
func validValue(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// spans parses ranges of status codes, such as "200-399" or "200,204,300-399"; "" is 200-399.
func spans(text string) ([]span, error) {
	if text == "" {
		return []span{{200, 399}}, nil
	}
	var all []span
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || a < 100 || b > 999 || a > b {
			return nil, fmt.Errorf("not asked: the status codes of the check are not ranges of numbers: %q", text)
		}
		all = append(all, span{a, b})
	}
	return all, nil
}

// passes reports whether a status code is in one of the ranges.
func (r *recipe) passes(code int) bool {
	return slices.ContainsFunc(r.status, func(s span) bool { return s.first <= code && code <= s.last })
}
