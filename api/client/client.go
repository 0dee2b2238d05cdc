package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"svcctl.io/svcctl/api/wire"
)

const (
	// dialTimeout bounds connecting to a socket, in case its server no longer accepts.
	dialTimeout = 3 * time.Second
	// callTimeout bounds the wait for an answer that the server gives at once.
	callTimeout = 10 * time.Second
	// idleConnection is the time for which an idle connection is kept open for the next call.
	idleConnection = 30 * time.Second
	// keptConnections bounds the idle connections that are kept open. It is large enough for callers with that
	// many concurrent calls.
	keptConnections = 32
	// waitGrace is added to the server's timeout of a wait to give the client's timeout.
	waitGrace = 5 * time.Second
	// dialPause is the time between two attempts to reach an appliance that starts.
	dialPause = 100 * time.Millisecond
	// maxAnswer bounds the size of a response in bytes. A status with 100,000 problems fits.
	maxAnswer = 64 << 20
)

// Condition is a condition that Wait waits for.
type Condition string

const (
	// Synced: everything that was accepted before the call is in the kernel.
	Synced Condition = "synced"
	// Ready: every source was read once, and what was accepted then is in the kernel.
	Ready Condition = "ready"
)

// Client talks to one appliance. It may be used concurrently.
type Client struct {
	// Warned, when it is not nil, is called with every warning that the server gives.
	Warned func(text string)
	// Failed, when it is not nil, is the error of every call.
	Failed error
	// Trial is the ID of the trial that all writes belong to; "" for none.
	Trial string
	// InRollout is the ID of the rollout that all writes belong to; "" for none.
	InRollout string

	place string // the path of the socket, or the URL
	base  string // URL prefix that request paths are appended to
	token string // sent with every request, "" for none
	http  *http.Client

	stoppedAfter time.Duration

	// Start is the command that starts the appliance, for the error when nothing serves on the socket; "" if that is unknown.
	Start string
}

// New returns a Client of the appliance that serves on the unix socket at path.
func New(path string) *Client {
	dialer := net.Dialer{Timeout: dialTimeout}
	return &Client{place: path, base: "http://svcctl", stoppedAfter: stoppedAfter, http: &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", path)
			},
			IdleConnTimeout:     idleConnection,
			MaxIdleConnsPerHost: keptConnections,
			DisableCompression:  true, // between processes of one machine
		},
	}}
}

// UnreachableError is the error of a call that got no answer.
type UnreachableError struct {
	// Socket is the path of the socket, or the URL of a remote appliance.
	Socket string
	Err    error
	// After is the timeout that has passed; 0 for other failures.
	After time.Duration
	peer  peer // process that listens on Socket; zero if unknown
	start string
}

// Error returns the reason with the next step.
func (e *UnreachableError) Error() string {
	if strings.Contains(e.Socket, "://") {
		return fmt.Sprintf("cannot reach the appliance at %s: %v", e.Socket, e.remedy())
	}
	if errors.Is(e.Err, fs.ErrPermission) {
		return fmt.Sprintf("cannot reach the appliance at %s: permission denied: run as root, or as a member of the socket's group", e.Socket)
	}
	if NotRunning(e) {
		if e.start != "" {
			return fmt.Sprintf("svcctl is not running (no answer at %s); its rules stay in force. Start it: %s", e.Socket, e.start)
		}
		return fmt.Sprintf("cannot reach the appliance at %s: is `svcctl serve` running? Another place is given with --socket", e.Socket)
	}
	if errors.Is(e.Err, context.DeadlineExceeded) {
		return e.silence()
	}
	return fmt.Sprintf("no answer from the appliance at %s: %v: its log may have the reason", e.Socket, e.Err)
}

// Sent reports whether the request may have reached the server. It is false if the connection was refused, or if the socket does not exist or cannot
// be opened.
func (e *UnreachableError) Sent() bool {
	return !errors.Is(e.Err, fs.ErrPermission) && !errors.Is(e.Err, fs.ErrNotExist) && !errors.Is(e.Err, syscall.ECONNREFUSED)
}

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Status asks for the status.
func (c *Client) Status(ctx context.Context) (*wire.Status, error) {
	return Call(ctx, c, wire.GetStatus, wire.None{})
}

// Version asks for the version of the server and of its API.
func (c *Client) Version(ctx context.Context) (*wire.Version, error) {
	var v wire.Version
	if err := c.call(ctx, http.MethodGet, "/version", nil, callTimeout, &v); err != nil {
		return nil, err
	}
	return &v, nil
}

// Wait returns the status once the condition holds. After timeout it returns a *wire.Failure with reason Timeout, or an *UnreachableError if the
// appliance did not respond. It retries while the appliance is starting or has not yet received the objects of its fleet.
func (c *Client) Wait(ctx context.Context, cond Condition, timeout time.Duration) (*wire.Status, error) {
	return c.WaitFor(ctx, cond, 0, timeout)
}

// WaitFor is like Wait, but the condition covers only changes up to a revision, such as the resourceVersion of an object. Revision 0 means everything
// accepted by now, including the content of files.
func (c *Client) WaitFor(ctx context.Context, cond Condition, revision uint64, timeout time.Duration) (*wire.Status, error) {
	deadline := time.Now().Add(timeout)
	for left := timeout; ; left = max(time.Until(deadline), time.Millisecond) {
		q := wire.WaitQuery{For: string(cond), Timeout: left, Revision: revision}
		var s wire.Status
		err := c.call(ctx, http.MethodGet, wire.Wait.Path, wire.WriteQuery(q), left+waitGrace, &s)
		if err == nil {
			return &s, nil
		}
		if f, refused := errors.AsType[*wire.Failure](err); !NotRunning(err) && !(refused && f.Details != nil && f.Details.RetryAfterSeconds > 0) || time.Until(deadline) < dialPause {
			return nil, err
		}
		if Pause(ctx, dialPause) != nil {
			return nil, err
		}
	}
}

// Pause waits for a duration. If ctx is done first, it returns the cause.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// NotRunning reports whether a call failed because no process serves on the socket.
func NotRunning(err error) bool {
	var unreachable *UnreachableError
	return errors.As(err, &unreachable) &&
		(errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED))
}

// Call makes a request to a route that returns one JSON value, and decodes the response.
func Call[Query, Answer any](ctx context.Context, c *Client, at wire.Route[Query, Answer], q Query) (*Answer, error) {
	answer := new(Answer)
	if err := c.call(ctx, at.Method, at.Path, wire.WriteQuery(q), callTimeout, answer); err != nil {
		return nil, err
	}
	return answer, nil
}

// call makes a request without a body and decodes the answer into v.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, timeout time.Duration, v any) error {
	return c.ask(ctx, request{method: method, path: path, query: query, patience: timeout}, v)
}

// ask makes a request and reads the whole answer.
func (c *Client) ask(ctx context.Context, r request, v any) error {
	resp, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Close()
	body, err := io.ReadAll(io.LimitReader(resp, maxAnswer))
	if err != nil {
		return c.unreachable(err)
	}
	return c.decode(r.path, body, v)
}

// decode reads an answer.
func (c *Client) decode(path string, body []byte, v any) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(v); err != nil {
		return c.strange(path, err)
	}
	return nil
}

// strange returns the error of an answer that cannot be decoded.
func (c *Client) strange(path string, err error) error {
	return fmt.Errorf("read the answer for %s from %s: %w: is it an svcctl of the same version that serves there?", path, c.place, err)
}

func (c *Client) unreachable(err error) error {
	return &UnreachableError{Socket: c.place, Err: cause(err), start: c.Start}
}

// silent returns the error of a request that got no answer within a time.
func (c *Client) silent(err error, after time.Duration) error {
	e := &UnreachableError{Socket: c.place, Err: cause(err), start: c.Start}
	if errors.Is(err, context.DeadlineExceeded) && !c.Remote() {
		e.After, e.peer = after, peerOf(c.place)
	}
	return e
}

// cause unwraps a *url.Error, since its text has the placeholder URL of the socket. It returns any other error unchanged.
func cause(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// failure returns the error of an answer with an HTTP status other than success.
func failure(code int, body []byte) error {
	var f wire.Failure
	if json.Unmarshal(body, &f) == nil && f.Kind == "Status" {
		return &f
	}
	return wire.NewFailure(code, wire.ReasonInternalError,
		fmt.Sprintf("the server answered %d %s: is it svcctl that serves there?", code, http.StatusText(code)))
}

// Place returns the path of the appliance's socket, or its URL.
func (c *Client) Place() string { return c.place }

// Remote reports whether the appliance is reached over TLS rather than by its socket, so that
// it may be on another machine.
func (c *Client) Remote() bool { return strings.Contains(c.place, "://") }

// Server is the address of a remote appliance with the credentials for it.
type Server struct {
	// URL is https://HOST:PORT, or HOST:PORT.
	URL string
	// Token is the bearer token of the user; "" for none.
	Token string
	// CA holds the PEM certificates of the CAs that may sign the server's certificate; nil means those of this system.
	CA []byte
}

// Remote returns a Client of a remote appliance.
func Remote(s Server) (*Client, error) {
	text := s.URL
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%q is no address of an appliance: want https://HOST:PORT", s.URL)
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CA != nil {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(s.CA) {
			return nil, errors.New("the CA has no certificate in PEM")
		}
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	return &Client{place: "https://" + u.Host, base: "https://" + u.Host, token: strings.TrimSpace(s.Token), http: &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, address)
			},
			TLSClientConfig:   settings,
			ForceAttemptHTTP2: true,
			IdleConnTimeout:   idleConnection,
		},
	}}, nil
}

// remedy returns why a remote appliance cannot be reached, with advice where there is some.
func (e *UnreachableError) remedy() error {
	switch unknown, is := errors.AsType[x509.UnknownAuthorityError](e.Err); {
	case is:
		return fmt.Errorf("%w: give its CA with --ca", unknown)
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: is `svcctl serve --listen` running there?", e.Err)
	case errors.Is(e.Err, io.EOF):
		return errors.New("it closed the connection: is it svcctl that serves there, with TLS?")
	}
	return e.Err
}

// Proxy returns a handler that forwards requests to the appliance with this Client's credentials. The Cookie and Authorization headers of a request
// are removed. If the appliance cannot be reached, unanswered writes the response.
func (c *Client) Proxy(unanswered func(w http.ResponseWriter, why error)) http.Handler {
	base, err := url.Parse(c.base)
	if err != nil {
		panic(fmt.Sprintf("client: base URL %q: %v", c.base, err)) // checked when it was made: a bug
	}
	return &httputil.ReverseProxy{
		Transport: c.http.Transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(base)
			r.Out.Host = ""
			r.Out.Header.Del("Cookie")
			r.Out.Header.Del("Authorization")
			if c.token != "" {
				r.Out.Header.Set("Authorization", "Bearer "+c.token)
			}
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			unanswered(w, c.unreachable(err))
		},
	}
}

// stoppedAfter is the wait for a response on the socket after which the client checks whether the server process is stopped (SIGSTOP). If the process
// is merely busy, the client waits longer.
const stoppedAfter = callTimeout

// errStopped ends a request to a process that is stopped.
var errStopped = errors.New("the process is stopped")

// peer is the process that serves on a socket.
type peer struct {
	pid     int32 // 0: not known, as from another PID namespace
	stopped bool  // whether a signal or a debugger has stopped it
}

// peerOf asks the kernel for the process that listens on a socket (SO_PEERCRED, unix(7)). The kernel
// completes the connection even if the process is stopped.
func peerOf(socket string) (p peer) {
	conn, err := net.DialTimeout("unix", socket, dialTimeout)
	if err != nil {
		return p
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return p
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			p.pid = cred.Pid
		}
	})
	p.stopped = p.pid > 0 && isStopped(p.pid)
	return p
}

// isStopped reports whether a process is stopped, by the third field of /proc/PID/stat, the state (proc_pid_stat(5)).
func isStopped(pid int32) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	return len(fields) > 0 && (fields[0] == "T" || fields[0] == "t")
}

// watchStopped cancels a request over the socket if the process there is found to be stopped (SIGSTOP) after c.stoppedAfter. The caller calls end
// when the response has begun. Requests to a remote appliance are not watched.
func (c *Client) watchStopped(cancel context.CancelCauseFunc) (end func()) {
	if c.Remote() {
		return func() {}
	}
	timer := time.AfterFunc(c.stoppedAfter, func() {
		if peerOf(c.place).stopped {
			cancel(errStopped)
		}
	})
	return func() { timer.Stop() }
}

// silence returns the message about an appliance that accepted a request and did not answer it.
func (e *UnreachableError) silence() string {
	who := "the appliance at " + e.Socket
	if e.peer.pid > 0 {
		who = fmt.Sprintf("the appliance (pid %d)", e.peer.pid)
	}
	text := who + " did not answer"
	if e.After > 0 {
		text += fmt.Sprintf(" within %d s", int(e.After.Round(time.Second).Seconds()))
	}
	if e.peer.stopped {
		return fmt.Sprintf("%s: it is stopped (SIGSTOP); packets flow on; `kill -CONT %d` lets it go on", text, e.peer.pid)
	}
	return text + ": it is busy, or waits for its disk: its log may have the reason; packets flow on"
}
