package fleet

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/store/fleet/stream"
)

const (
	// coreTimeout bounds the wait for one core box to begin an answer; stateTimeout where it may have to read all objects.
	coreTimeout  = 2 * time.Second
	stateTimeout = 30 * time.Second
	// maxCoreAnswer bounds an answer that is no stream, in bytes.
	maxCoreAnswer = 16 << 20
)

// atCore is the origin of a leaf: it asks one core box, the next one when that does not answer, and that one again once it is well.
type atCore struct {
	e     *Engine
	cores []string // as this leaf prefers them
	http  *http.Client

	mu   sync.Mutex
	at   int           // in cores
	left chan struct{} // closed when another one is asked from then on
	anew bool          // the one that is asked now has not had a report
	told []byte        // the Node that it was told last
	node []byte        // the Node to be told

	preference preference
}

// newAtCore returns the origin of a leaf. Leaves prefer core boxes by a hash of both names, so that each gets its share of
// them, and of those of one that goes away.
func newAtCore(e *Engine) *atCore {
	rank := func(core string) string {
		sum := sha256.Sum256([]byte(e.cfg.Box + " " + core))
		return string(sum[:])
	}
	cores := slices.Clone(e.cfg.Cores)
	slices.SortFunc(cores, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	dialer := net.Dialer{Timeout: coreTimeout}
	return &atCore{e: e, cores: cores, anew: true, left: make(chan struct{}), preference: newPreference(e.cfg.Box, len(cores), e.cfg.pace()), http: &http.Client{Transport: &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: e.cfg.CoreTLS, ForceAttemptHTTP2: true, TLSHandshakeTimeout: coreTimeout,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, DisableCompression: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: keepaliveTime, PingTimeout: keepaliveTimeout}, // a connection may be dead without a word
	}}}
}

func (c *atCore) head(ctx context.Context, at int64) (*head, int64, error) {
	query := url.Values{}
	if at != 0 {
		query.Set("at", strconv.FormatInt(at, 10))
	}
	var a headAnswer
	if err := c.get(ctx, http.MethodGet, "/head", query, nil, &a); err != nil {
		return nil, 0, err
	}
	if a.Head != nil {
		a.Head.mod = a.Mod
	}
	return a.Head, a.Known, nil
}

func (c *atCore) settings(ctx context.Context) (*settings, error) {
	var a headAnswer
	if err := c.get(ctx, http.MethodGet, "/head", nil, nil, &a); err != nil {
		return nil, err
	}
	if a.Settings == nil {
		return nil, errors.New("the core box has not sent the settings of the fleet")
	}
	return a.Settings, nil
}

func (c *atCore) state(ctx context.Context) (now *head, at int64, have map[string][]byte, err error) {
	query := url.Values{}
	if read := c.e.stands(); read != nil {
		query.Set("least", strconv.FormatInt(read.mod, 10))
	}
	resp, _, err := c.ask(ctx, http.MethodGet, "/state", query, nil, stateTimeout)
	if err != nil {
		return nil, 0, nil, err
	}
	defer resp.Body.Close()
	have = map[string][]byte{}
	for frames := stream.NewDecoder(resp.Body); ; {
		f, err := frames.Next()
		switch {
		case err != nil:
			return nil, 0, nil, fmt.Errorf("read all objects from a core box: %w", err)
		case f.Kind == stream.State:
			if now, err = c.e.decodeHead(f.Head, f.Mod); err != nil {
				return nil, 0, nil, err
			}
		case f.Kind == stream.Objects:
			for i := range f.Ops {
				have[f.Ops[i].Key] = f.Ops[i].Value
			}
		case f.Kind == stream.End && now != nil:
			return now, now.mod, have, nil
		default:
			return nil, 0, nil, fmt.Errorf("read all objects from a core box: %w", stream.ErrMalformed)
		}
	}
}

func (c *atCore) follow(ctx context.Context) error {
	read := c.e.stands()
	query := url.Values{"after": {strconv.FormatInt(read.mod, 10)}, "id": {read.ID}}
	resp, left, err := c.ask(ctx, http.MethodGet, "", query, nil, fillTimeout+coreTimeout)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	done := make(chan struct{})
	defer close(done)
	go func() { // ends with the stream
		select {
		case <-left: // a stream that is silent does not tell
			resp.Body.Close()
		case <-done:
		}
	}()
	for frames := stream.NewDecoder(resp.Body); ; {
		f, err := frames.Next()
		if err != nil {
			return fmt.Errorf("the stream of commits ended: %w", err)
		}
		if err := c.take(f); err != nil {
			return err
		}
	}
}

// take takes one frame of the stream.
func (c *atCore) take(f *stream.Commit) error {
	switch f.Kind {
	case stream.Settings:
		return c.e.takeSettings(f.Head)
	case stream.Change:
	default:
		return stream.ErrMalformed
	}
	h, err := c.e.decodeHead(f.Head, f.Mod)
	if err != nil {
		return err
	}
	it := &happened{head: h, note: h.Note, ops: make([]operation, len(f.Ops))}
	if len(f.Note) > 0 {
		it.note = f.Note
	}
	for i := range f.Ops {
		if !isContent(f.Ops[i].Key) {
			return stream.ErrMalformed
		}
		it.ops[i] = operation{key: f.Ops[i].Key, value: f.Ops[i].Value, remove: f.Ops[i].Remove}
	}
	if err := c.e.accept(it); err != nil {
		return err
	}
	c.e.mu.Lock()
	c.e.known = max(c.e.known, h.mod)
	c.e.mu.Unlock()
	return nil
}

// renew reports to the core box.
func (c *atCore) renew(ctx context.Context, b *beats) error {
	e := c.e
	e.mu.Lock()
	report := e.report
	e.mu.Unlock()
	r := LeafReport{Instance: e.instance}
	if report != nil {
		r.Report = report()
	}
	r.Report = e.complete(r.Report)
	c.mu.Lock()
	r.Report.Core, r.Anew = c.cores[c.at], c.anew
	node := c.node
	if !bytes.Equal(node, c.told) {
		r.Node = node
	}
	core := c.cores[c.at]
	c.mu.Unlock()
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var a reportAnswer
	err = c.get(ctx, http.MethodPost, "/report", nil, body, &a)
	if err != nil {
		if held := (*heldError)(nil); errors.As(err, &held) && held.kind == Namesake {
			e.note(held)
		}
		return err
	}
	c.mu.Lock()
	if c.cores[c.at] == core {
		c.anew, c.told = false, node
	}
	c.mu.Unlock()
	e.mu.Lock()
	freed := e.state.kind == Namesake
	e.turn.holder = a.Writer
	e.mu.Unlock()
	if freed { // the other one has gone
		e.note(nil)
	}
	return nil
}

func (c *atCore) boxes(ctx context.Context) ([]Box, error) {
	var a boxesAnswer
	err := c.get(ctx, http.MethodGet, "/boxes", nil, nil, &a)
	return a.Boxes, err
}

func (c *atCore) holders(ctx context.Context) (map[string]string, error) {
	var a boxesAnswer
	if err := c.get(ctx, http.MethodGet, "/boxes", nil, nil, &a); err != nil {
		return nil, c.e.away(err)
	}
	return a.Holders, nil
}

func (c *atCore) refusal() error { return leafRefusal(c.e.cfg.Cores) }

func (c *atCore) from() string { return "its core boxes" }

func (c *atCore) silence(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (c *atCore) leave() error {
	c.http.CloseIdleConnections()
	return nil
}

// TellNode has the core box keep the Node of this leaf, which is JSON. On a box that follows etcd it does nothing.
func (e *Engine) TellNode(node []byte) {
	if c, is := e.origin.(*atCore); is {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.node = node
	}
}

// IsLeaf reports whether this box follows a core box.
func (e *Engine) IsLeaf() bool { return e.client == nil }

// Core is the URL of the core box that a leaf asks now, "" for a box that follows etcd.
func (e *Engine) Core() string {
	if c, is := e.origin.(*atCore); is {
		core, _ := c.current()
		return core
	}
	return ""
}

// RoundTrip sends a request of a client of this leaf to the core box, or to the next one when it cannot be reached. It implements
// http.RoundTripper.
func (e *Engine) RoundTrip(r *http.Request) (*http.Response, error) {
	c, is := e.origin.(*atCore)
	if !is {
		return nil, errors.New("this box follows etcd itself")
	}
	out := r.Clone(r.Context())
	if r.Body != nil {
		defer r.Body.Close()
		out.Body = io.NopCloser(r.Body) // a Transport closes it, and the next one may have to read it
	}
	var failed []error
	for range c.cores {
		core, _ := c.current()
		u, err := url.Parse(core)
		if err != nil {
			return nil, err
		}
		out.URL.Scheme, out.URL.Host = u.Scheme, u.Host
		resp, err := c.http.Transport.RoundTrip(out)
		if err == nil {
			return resp, nil
		}
		failed = append(failed, fmt.Errorf("core box %s: %w", core, err))
		if dial, is := errors.AsType[*net.OpError](err); !is || dial.Op != "dial" { // it may have been sent
			break
		}
		c.leaveCore(core)
	}
	return nil, errors.Join(failed...)
}
