package remote

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/appliance/discover/provider"
)

const (
	// answerTime is the longest time from a request to the last byte of its response, except for long polls.
	answerTime = time.Minute
	// answerBytes is the largest size of a response in bytes, after decompression.
	answerBytes = 32 << 20
	// pauseMost is the longest pause that a Retry-After header can cause, pauseLeast the pause after status 429 without that header.
	pauseMost, pauseLeast = 5 * time.Minute, time.Second
)

// Server is the address of an HTTP API, with the credentials for it.
type Server struct {
	// URL is http://HOST:PORT, https://HOST:PORT or unix:///PATH.
	URL string
	// CA is a file of CA certificates, or a directory of such files, that verify the server's certificate; empty: the system's.
	CA string
	// Cert and Key are the files of the client's certificate and key; they are read for each connection.
	Cert, Key string
	// Name is the name in the server's certificate; empty: the host of the URL.
	Name string
	// Insecure is set when the server's certificate is not verified.
	Insecure bool
	// Header goes with each request.
	Header http.Header
	// TokenHeader is the header that gets the content of TokenFile, which is read for each request.
	TokenHeader, TokenFile string
	// Auth is USER:PASSWORD for HTTP basic authentication.
	Auth string
	// Conns is the largest number of connections; the server has a limit for each client.
	Conns int
}

// HashiCorp returns a Server with the credentials in the environment variables (env) of a command line tool of HashiCorp. Their names begin
// with prefix. token is the variable with the token, which is sent in header.
func HashiCorp(env map[string]string, prefix, token, header string) Server {
	s := Server{
		CA: cmp.Or(env[prefix+"CACERT"], env[prefix+"CAPATH"]), Cert: env[prefix+"CLIENT_CERT"], Key: env[prefix+"CLIENT_KEY"],
		Name: env[prefix+"TLS_SERVER_NAME"], Auth: env[prefix+"HTTP_AUTH"],
		TokenHeader: header, TokenFile: env[token+"_FILE"], Header: http.Header{},
	}
	if env[token] != "" {
		s.Header.Set(header, env[token])
		s.TokenFile = ""
	}
	return s
}

// Bool returns the boolean value of a variable in env. `otherwise` is the value of a variable that is unset or empty. Text that strconv.ParseBool
// does not accept is an error.
func Bool(env map[string]string, name string, otherwise bool) (bool, error) {
	if env[name] == "" {
		return otherwise, nil
	}
	value, err := strconv.ParseBool(env[name])
	if err != nil {
		return false, fmt.Errorf("%s: must be true or false: %q", name, env[name])
	}
	return value, nil
}

// Client sends requests to one Server.
type Client struct {
	server Server
	base   string // the start of the URLs of requests
	http   http.Client

	mu    sync.Mutex
	until time.Time // earliest time of the next request, as the server requested
}

// NewClient returns a Client for a Server. It reads the files of certificates, and makes no connection.
func NewClient(s Server) (*Client, error) {
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, fmt.Errorf("%q is no URL", s.URL) // the error may have a password
	}
	dialer := net.Dialer{Timeout: 10 * time.Second}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSHandshakeTimeout: answerTime,
		IdleConnTimeout: answerTime, MaxIdleConnsPerHost: s.Conns, MaxConnsPerHost: s.Conns,
		ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10, // there are many that wait
	}
	c := &Client{server: s, base: u.Scheme + "://" + u.Host + strings.TrimSuffix(u.EscapedPath(), "/")}
	switch {
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		c.server.URL, c.base = "unix://"+u.Path, "http://localhost"
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", u.Path)
		}
	default:
		return nil, fmt.Errorf("%q: must be http://HOST:PORT, https://HOST:PORT or unix:///PATH", u.Redacted())
	}
	if u.Scheme != "unix" {
		c.server.URL = u.Scheme + "://" + u.Host
	}
	if u.User != nil {
		password, _ := u.User.Password()
		c.server.Auth = u.User.Username() + ":" + password
	}
	if transport.TLSClientConfig, err = s.tls(); err != nil {
		return nil, err
	}
	c.http.Transport = transport
	// A redirect would carry the token to another server.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// tls returns the TLS configuration with the CA certificates. It reads the client's certificate once to find errors; connections read it
// again.
func (s Server) tls() (*tls.Config, error) {
	config := &tls.Config{ServerName: s.Name, InsecureSkipVerify: s.Insecure}
	if s.CA != "" {
		names := []string{s.CA}
		if entries, err := os.ReadDir(s.CA); err == nil {
			names = nil
			for _, e := range entries {
				names = append(names, filepath.Join(s.CA, e.Name()))
			}
		}
		config.RootCAs = x509.NewCertPool()
		found := false
		for _, name := range names {
			pem, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			found = config.RootCAs.AppendCertsFromPEM(pem) || found
		}
		if !found {
			return nil, fmt.Errorf("%s: has no certificate in PEM", s.CA)
		}
	}
	if s.Cert == "" && s.Key == "" {
		return config, nil
	}
	if _, err := tls.LoadX509KeyPair(s.Cert, s.Key); err != nil {
		return nil, err
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(s.Cert, s.Key)
		return &pair, err
	}
	return config, nil
}

// A StatusError is a response with an unexpected status.
type StatusError struct {
	Code   int
	Header http.Header
	text   string
}

func (e *StatusError) Error() string { return e.text }

// Get sends a GET request for path, which must be escaped. more holds further headers as alternating names and values. A response with a status other
// than 200 and those in codes is returned as a *StatusError. The caller must close the body.
func (c *Client) Get(ctx context.Context, path string, query url.Values, more []string, codes ...int) (*http.Response, error) {
	if err := c.pause(ctx); err != nil {
		return nil, err
	}
	to := c.base + path
	if len(query) > 0 {
		to += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, c.server.Header)
	for pair := range slices.Chunk(more, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	if c.server.TokenFile != "" {
		token, err := os.ReadFile(c.server.TokenFile)
		if err != nil {
			return nil, err
		}
		value := strings.TrimSpace(string(token))
		if value == "" { // without a token a server may answer something else
			return nil, fmt.Errorf("%s: has no token", c.server.TokenFile)
		}
		if c.server.TokenHeader == "Authorization" {
			value = "Bearer " + value
		}
		req.Header.Set(c.server.TokenHeader, value)
	}
	if user, password, is := strings.Cut(c.server.Auth, ":"); is {
		req.SetBasicAuth(user, password)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.failed(ctx, err)
	}
	if resp.StatusCode == http.StatusOK || slices.Contains(codes, resp.StatusCode) {
		return resp, nil
	}
	defer resp.Body.Close()
	c.postpone(resp)
	text := fmt.Sprintf("%s: HTTP %s", c.server.URL, resp.Status) // without the path: all questions have one reason
	if to := resp.Header.Get("Location"); to != "" {
		text += fmt.Sprintf(" to %.200q, which is not followed: name that URL in --from", to)
	} else if body, _ := io.ReadAll(io.LimitReader(resp.Body, 200)); len(bytes.TrimSpace(body)) > 0 {
		text += fmt.Sprintf(": %.200q", bytes.TrimSpace(body))
	}
	return nil, &StatusError{resp.StatusCode, resp.Header, text}
}

// failed returns an error with the server's URL and without the query, which may contain a secret.
func (c *Client) failed(ctx context.Context, err error) error {
	if wrapped, is := errors.AsType[*url.Error](err); is {
		err = wrapped.Err
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return fmt.Errorf("%s: no complete answer in time", c.server.URL)
	}
	return fmt.Errorf("%s: %w", c.server.URL, Plain(err))
}

// Plain returns the error of a connection without the addresses: the local port differs at each attempt, and a lasting error should keep one text.
func Plain(err error) error {
	if op, is := errors.AsType[*net.OpError](err); is && op.Err != nil {
		err = op.Err
	}
	if call, is := errors.AsType[*os.SyscallError](err); is {
		err = call.Err
	}
	return err
}

// pause waits until the server accepts requests again, after a response that asked for a pause.
func (c *Client) pause(ctx context.Context) error {
	c.mu.Lock()
	wait := time.Until(c.until)
	c.mu.Unlock()
	return Sleep(ctx, wait)
}

// postpone records the pause that a response with 429 or 503 asks for. It delays all requests of the Client.
func (c *Client) postpone(resp *http.Response) {
	var wait time.Duration
	switch resp.StatusCode {
	case http.StatusTooManyRequests:
		wait = pauseLeast
	case http.StatusServiceUnavailable:
	default:
		return
	}
	after := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(after, 10, 31); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(after); err == nil {
		wait = time.Until(at)
	}
	until := time.Now().Add(min(wait, pauseMost))
	c.mu.Lock()
	defer c.mu.Unlock()
	if until.After(c.until) {
		c.until = until
	}
}

// JSON sends a GET request and decodes the response into a value. A truncated response, trailing data, null and JSON of another shape are
// errors. poll is the time for which the server may delay the response (long poll).
func (c *Client) JSON(ctx context.Context, path string, query url.Values, poll time.Duration, into any) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime+poll)
	defer cancel()
	resp, err := c.Get(ctx, path, query, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := c.Read(ctx, resp)
	if err != nil {
		return nil, err
	}
	if err := Unmarshal(body, into); err != nil {
		return nil, fmt.Errorf("%s: %w", c.server.URL, err)
	}
	return resp.Header, nil
}

// Read reads a response body to its end, or the first answerBytes+1 bytes of it.
func (c *Client) Read(ctx context.Context, resp *http.Response) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerBytes+1))
	if err != nil {
		return nil, c.failed(ctx, fmt.Errorf("the answer was cut: %w", Plain(err)))
	}
	return body, nil
}

// Unmarshal decodes one JSON value. It returns an error for null, an empty text and a text longer than answerBytes, or with so many short values that
// decoding them would take many times as much memory.
func Unmarshal(text []byte, into any) error {
	switch {
	case len(text) > answerBytes:
		return fmt.Errorf("the answer has more than %d MiB", answerBytes>>20)
	case bytes.Count(text, []byte(",")) > answerBytes/16:
		return fmt.Errorf("the answer has more than %d values", answerBytes/16)
	case len(bytes.TrimSpace(text)) == 0:
		return errors.New("the answer is empty, and no JSON")
	case string(bytes.TrimSpace(text)) == "null":
		return errors.New("the answer is null")
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("the answer is not as expected: %w", err)
	}
	return nil
}

// Sleep waits for d, which may be 0 or less. If ctx is done earlier, it returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A Hub shares one stream of events among all questions of a provider. An event is only a trigger: the questions that it concerns are asked
// again for their full answers.
type Hub struct {
	// Pace is the least time between two lists of one question.
	Pace time.Duration
	// Again is the time after an event at which a question is asked once more, since the lists of some servers lag behind their events; 0: never.
	Again time.Duration

	mu     sync.Mutex
	run    *Events   // the running stream; nil: none runs
	failed time.Time // when the last run failed
}

// rest is the time after a failed stream before the next one is started, however many questions wait for it.
const rest = 200 * time.Millisecond

// Events is one run of a stream, with the questions that follow it.
type Events struct {
	ready, ended chan struct{}
	opened       sync.Once
	err          error // why the stream ended; set before ended is closed
	stop         context.CancelFunc

	mu        sync.Mutex
	followers map[*follower]struct{}
}

type follower struct {
	question provider.Question
	wake     chan struct{} // capacity 1
}

// Ready is called by a stream once it is set up. The stream must miss no event from then on.
func (e *Events) Ready() { e.opened.Do(func() { close(e.ready) }) }

// Wake causes the questions for which concerns returns true to be asked again.
func (e *Events) Wake(concerns func(provider.Question) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for f := range e.followers {
		if concerns(f.question) {
			select {
			case f.wake <- struct{}{}:
			default:
			}
		}
	}
}

// Follow calls list for a question when the stream is ready and after each event that concerns the question. It passes each answer to take, until ctx
// is done or an error occurs. The first question starts the stream, and the end of the last question stops it. If the stream ends, Follow returns an
// error for all questions.
func (h *Hub) Follow(ctx context.Context, q provider.Question, take func(provider.Answer), stream func(context.Context, *Events) error, list func(context.Context) (provider.Answer, error)) error {
	h.mu.Lock()
	wait := rest - time.Since(h.failed)
	h.mu.Unlock()
	if err := Sleep(ctx, wait); err != nil {
		return err
	}
	f := &follower{q, make(chan struct{}, 1)}
	e := h.join(ctx, f, stream)
	defer h.leave(e, f)
	select {
	case <-e.ready:
	case <-e.ended:
		return e.err
	case <-ctx.Done():
		return ctx.Err()
	}
	var again <-chan time.Time
	for {
		var answer provider.Answer
		var err error
		listed := make(chan struct{})
		go func() { // most questions wait, and need no stack of a size for this
			defer close(listed)
			answer, err = list(ctx)
		}()
		if <-listed; err != nil {
			return err
		}
		take(answer)
		if err := Sleep(ctx, h.Pace); err != nil {
			return err
		}
		select {
		case <-f.wake:
			again = nil
			if h.Again > 0 {
				again = time.After(h.Again)
			}
		case <-again:
			again = nil
		case <-e.ended:
			return e.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *Hub) join(ctx context.Context, f *follower, stream func(context.Context, *Events) error) *Events {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run == nil {
		// The stream is also of the questions that come after this one.
		streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		e := &Events{ready: make(chan struct{}), ended: make(chan struct{}), stop: cancel, followers: map[*follower]struct{}{}}
		h.run = e
		go func() {
			err := stream(streamCtx, e)
			h.mu.Lock()
			defer h.mu.Unlock()
			if h.run == e {
				h.run, h.failed = nil, time.Now()
			}
			e.err = err
			cancel()
			close(e.ended)
		}()
	}
	h.run.mu.Lock()
	defer h.run.mu.Unlock()
	h.run.followers[f] = struct{}{}
	return h.run
}

func (h *Hub) leave(e *Events, f *follower) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.followers, f)
	if len(e.followers) > 0 {
		return
	}
	e.stop()
	if h.run == e {
		h.run = nil
	}
}
