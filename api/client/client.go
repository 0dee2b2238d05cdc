package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"svcctl.io/svcctl/api/wire"
)

const (
	// dialTimeout is for a socket whose server does not accept any more.
	dialTimeout = 3 * time.Second
	// callTimeout is for an answer that the server gives at once.
	callTimeout = 10 * time.Second
	// idleConnection is the time for which a connection is kept for the next call.
	idleConnection = 30 * time.Second
	// keptConnections bounds the idle connections that are kept, for callers with as many
	// concurrent calls.
	keptConnections = 32
	// waitGrace is the time by which the client waits longer than the server.
	waitGrace = 5 * time.Second
	// dialPause is the time between two attempts to reach an appliance that starts.
	dialPause = 100 * time.Millisecond
	// maxAnswer bounds an answer in bytes: a status with 100,000 problems.
	maxAnswer = 64 << 20
)

// Condition is a condition that Wait waits for.
type Condition string

const (
	// Synced: everything accepted until the call is in the kernel.
	Synced Condition = "synced"
	// Ready: every source was read once, and what was accepted then is in the kernel.
	Ready Condition = "ready"
)

// Client talks to one appliance. It may be used concurrently.
type Client struct {
	// Warned, when it is not nil, is called with every warning that the server gives.
	Warned func(text string)
	// Trial is the ID of the trial that all writes belong to; "": they stay.
	Trial string
	// InRollout is the ID of the rollout that all writes belong to; "": to none.
	InRollout string

	place string // the path of the socket, or the URL
	base  string // what paths are appended to
	token string // sent with every request, "" for none
	http  *http.Client

	stoppedAfter time.Duration

	// Start is the command that starts the appliance, for the error when nothing serves on the socket; "" if that is unknown.
	Start string
}

// New is a Client of the appliance that serves on the unix socket at path.
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
	peer  peer // who listens there; zero when it is not known
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
	return fmt.Sprintf("no answer from the appliance at %s: %v: its log may say why", e.Socket, e.Err)
}

// Sent reports whether the request may have arrived: no connection was refused.
func (e *UnreachableError) Sent() bool {
	return !errors.Is(e.Err, fs.ErrPermission) && !errors.Is(e.Err, fs.ErrNotExist) && !errors.Is(e.Err, syscall.ECONNREFUSED)
}

// Unwrap is the cause.
func (e *UnreachableError) Unwrap() error { return e.Err }

// Status asks for the status.
func (c *Client) Status(ctx context.Context) (*wire.Status, error) {
	var s wire.Status
	if err := c.get(ctx, "/svcctl/v1/status", nil, callTimeout, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Environment asks for the variables that tell where the Services of a namespace are.
func (c *Client) Environment(ctx context.Context, namespace string) (*wire.Environment, error) {
	var e wire.Environment
	if err := c.get(ctx, "/svcctl/v1/env", url.Values{"namespace": {namespace}}, callTimeout, &e); err != nil {
		return nil, err
	}
	return &e, nil
}

// Health asks for the endpoints that are checked: of a Service, of a namespace if name is empty, or
// of all if that is empty too.
func (c *Client) Health(ctx context.Context, namespace, name string) (*wire.Health, error) {
	var h wire.Health
	if err := c.get(ctx, "/svcctl/v1/health", url.Values{"namespace": {namespace}, "name": {name}}, callTimeout, &h); err != nil {
		return nil, err
	}
	return &h, nil
}

// Probe has the box connect to each TCP endpoint of a Service.
func (c *Client) Probe(ctx context.Context, namespace, name string) ([]wire.Probed, error) {
	var p wire.Probes
	if err := c.call(ctx, http.MethodPost, "/svcctl/v1/probe", url.Values{"namespace": {namespace}, "name": {name}}, callTimeout, &p); err != nil {
		return nil, err
	}
	return p.Endpoints, nil
}

// Version asks which API is spoken.
func (c *Client) Version(ctx context.Context) (*wire.Version, error) {
	var v wire.Version
	if err := c.get(ctx, "/version", nil, callTimeout, &v); err != nil {
		return nil, err
	}
	return &v, nil
}

// Release lets go what is kept in force although no object declares it, or not any more, and
// tells how much that was.
func (c *Client) Release(ctx context.Context) (r wire.Released, err error) {
	err = c.call(ctx, http.MethodPost, "/svcctl/v1/release", nil, callTimeout, &r)
	return r, err
}

// Fleet asks how the box stands to its fleet, and how the other boxes of it are.
func (c *Client) Fleet(ctx context.Context) (*wire.Fleet, error) {
	var f wire.Fleet
	if err := c.get(ctx, "/svcctl/v1/fleet", nil, callTimeout, &f); err != nil {
		return nil, err
	}
	return &f, nil
}

// FleetSources asks for the readers of the fleet's directories of manifests.
func (c *Client) FleetSources(ctx context.Context) (list []wire.FleetSource, err error) {
	err = c.get(ctx, "/svcctl/v1/fleet/sources", nil, callTimeout, &list)
	return list, err
}

// TakeSource gives the reading of a source to a box, whatever that has in its directory. It returns the source as it was.
func (c *Client) TakeSource(ctx context.Context, name, box string) (before wire.FleetSource, err error) {
	err = c.call(ctx, http.MethodPost, "/svcctl/v1/fleet/source", url.Values{"name": {name}, "box": {box}}, callTimeout, &before)
	return before, err
}

// ForgetSource drops a source that no box of the fleet has any more, and returns what became of it.
func (c *Client) ForgetSource(ctx context.Context, name string) (gone wire.ForgottenSource, err error) {
	err = c.call(ctx, http.MethodPost, "/svcctl/v1/fleet/source/forget", url.Values{"name": {name}}, callTimeout, &gone)
	return gone, err
}

// AcceptFleet has all boxes of the fleet take what etcd has, although it went back.
func (c *Client) AcceptFleet(ctx context.Context) (f wire.Fleet, err error) {
	err = c.call(ctx, http.MethodPost, "/svcctl/v1/fleet/accept", nil, callTimeout, &f)
	return f, err
}

// Wait returns the status once the condition holds. It gives up after timeout:
// with a *wire.Failure of reason Timeout, or, when the appliance did not even
// answer until then, with an *UnreachableError. An appliance that is just being
// started, or has no objects of its fleet yet, is waited for.
func (c *Client) Wait(ctx context.Context, cond Condition, timeout time.Duration) (*wire.Status, error) {
	return c.WaitFor(ctx, cond, 0, timeout)
}

// WaitFor is Wait for Synced up to a revision, such as the resourceVersion of an object; 0
// is everything that is accepted by now, what files say included.
func (c *Client) WaitFor(ctx context.Context, cond Condition, revision uint64, timeout time.Duration) (*wire.Status, error) {
	deadline := time.Now().Add(timeout)
	for left := timeout; ; left = max(time.Until(deadline), time.Millisecond) {
		query := url.Values{"for": {string(cond)}, "timeout": {left.String()}}
		if revision > 0 {
			query.Set("revision", strconv.FormatUint(revision, 10))
		}
		var s wire.Status
		err := c.get(ctx, "/svcctl/v1/wait", query, left+waitGrace, &s)
		if err == nil {
			return &s, nil
		}
		if f, refused := errors.AsType[*wire.Failure](err); !NotRunning(err) && !(refused && f.Details != nil && f.Details.RetryAfterSeconds > 0) || time.Until(deadline) < dialPause {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(dialPause):
		}
	}
}

// NotRunning reports whether a call failed because no process serves on the socket.
func NotRunning(err error) bool {
	var unreachable *UnreachableError
	return errors.As(err, &unreachable) &&
		(errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED))
}

// get asks for path and decodes the answer into v.
func (c *Client) get(ctx context.Context, path string, query url.Values, timeout time.Duration, v any) error {
	return c.call(ctx, http.MethodGet, path, query, timeout, v)
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

// strange is the error of an answer that cannot be read.
func (c *Client) strange(path string, err error) error {
	return fmt.Errorf("read the answer for %s from %s: %w: is it an svcctl of the same version that serves there?", path, c.place, err)
}

func (c *Client) unreachable(err error) error {
	return &UnreachableError{Socket: c.place, Err: cause(err), start: c.Start}
}

// silent is the error of a request that got no answer for so long.
func (c *Client) silent(err error, after time.Duration) error {
	e := &UnreachableError{Socket: c.place, Err: cause(err), start: c.Start}
	if errors.Is(err, context.DeadlineExceeded) && !c.Remote() {
		e.After, e.peer = after, peerOf(c.place)
	}
	return e
}

// cause takes the made-up URL out of an error of net/http.
func cause(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// failure is the error of an answer that is none of success.
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

// Service asks for the state of a Service, and for the endpoint that a client gets, given as
// ADDRESS or ADDRESS:PORT; "": no client.
func (c *Client) Service(ctx context.Context, namespace, name, client string) (*wire.ServiceState, error) {
	var s wire.ServiceState
	query := url.Values{"namespace": {namespace}, "name": {name}}
	if client != "" {
		query.Set("client", client)
	}
	if err := c.get(ctx, "/svcctl/v1/service", query, callTimeout, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Setup asks where the appliance has what is its own.
func (c *Client) Setup(ctx context.Context) (*wire.Setup, error) {
	var s wire.Setup
	if err := c.get(ctx, "/svcctl/v1/setup", nil, callTimeout, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Remote reports whether the appliance is reached over TLS rather than by its socket, so that
// it may be on another machine.
func (c *Client) Remote() bool { return strings.Contains(c.place, "://") }

// Allocations asks for the ranges and who holds what of them.
func (c *Client) Allocations(ctx context.Context) (*wire.Allocations, error) {
	var a wire.Allocations
	if err := c.get(ctx, "/svcctl/v1/alloc", nil, callTimeout, &a); err != nil {
		return nil, err
	}
	return &a, nil
}

// RepairAllocations has what is held, and what the Services have, made to agree.
func (c *Client) RepairAllocations(ctx context.Context) (*wire.Allocations, error) {
	var a wire.Allocations
	if err := c.call(ctx, http.MethodPost, "/svcctl/v1/alloc/repair", nil, callTimeout, &a); err != nil {
		return nil, err
	}
	return &a, nil
}
