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

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet/stream"
)

const (
	// coreTimeout bounds the wait for the headers of a core box's answer. stateTimeout replaces it where the core box may have to read all
	// objects first.
	coreTimeout  = 2 * time.Second
	stateTimeout = 30 * time.Second
	// maxCoreAnswer bounds the body of an answer that is not a stream, in bytes.
	maxCoreAnswer = 16 << 20
)

// coreClient is the origin of a leaf. It follows one core box, switches to the next one if that box does not answer, and returns to a preferred core
// box when it answers again.
type coreClient struct {
	*member
	cores []string // URLs in the order in which this leaf prefers them
	http  *http.Client

	mu    sync.Mutex
	at    int           // index in cores of the box in use
	left  chan struct{} // closed when the leaf switches to another box
	fresh bool          // the core box in use has received no report of this leaf yet
	sent  []byte        // the Node object that the core box in use last received
	node  []byte        // the Node to send

	selector coreSelector
}

// newCoreClient returns the origin of a leaf. It orders the core boxes by a hash of leaf and core box. So leaves are distributed evenly over the core
// boxes, and if a core box fails, its leaves are distributed evenly over the others.
func newCoreClient(e *member) *coreClient {
	rank := func(core string) string {
		sum := sha256.Sum256([]byte(e.cfg.Box + " " + core))
		return string(sum[:])
	}
	cores := slices.Clone(e.cfg.Cores)
	slices.SortFunc(cores, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	dialer := net.Dialer{Timeout: coreTimeout}
	return &coreClient{member: e, cores: cores, fresh: true, left: make(chan struct{}), selector: newCoreSelector(e.cfg.Box, len(cores), e.cfg.pace()), http: &http.Client{Transport: &http.Transport{
		DialContext: dialer.DialContext, TLSClientConfig: e.cfg.CoreTLS, ForceAttemptHTTP2: true, TLSHandshakeTimeout: coreTimeout,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute, DisableCompression: true,
		HTTP2: &http.HTTP2Config{SendPingTimeout: keepaliveTime, PingTimeout: keepaliveTimeout}, // a connection may be dead without a word
	}}}
}

func (c *coreClient) head(ctx context.Context, at int64) (*head, int64, error) {
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

func (c *coreClient) settings(ctx context.Context) (*settings, int64, error) {
	var a headAnswer
	err := c.get(ctx, http.MethodGet, "/head", nil, nil, &a)
	if err == nil && a.Settings == nil {
		err = errors.New("the core box has not sent the settings of the fleet")
	}
	return a.Settings, 0, err
}

func (c *coreClient) state(ctx context.Context, least int64) (now *head, at int64, have map[string][]byte, err error) {
	resp, _, err := c.ask(ctx, http.MethodGet, "/state", url.Values{"least": {strconv.FormatInt(least, 10)}}, nil, stateTimeout)
	if err != nil {
		return nil, 0, nil, err
	}
	defer resp.Body.Close()
	have = map[string][]byte{}
	for frames := stream.NewDecoder(resp.Body); ; {
		switch f, err := frames.Next(); {
		case err != nil:
			return nil, 0, nil, fmt.Errorf("read all objects from a core box: %w", err)
		case f.Kind == stream.State:
			if now, err = c.decodeHead(f.Head, f.Mod); err != nil {
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

func (c *coreClient) follow(ctx context.Context, read *head, _ int64, use func(*transaction) error) error {
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
		case <-left: // a stream may be silent for long
			resp.Body.Close()
		case <-done:
		}
	}()
	for frames := stream.NewDecoder(resp.Body); ; {
		f, err := frames.Next()
		if err != nil {
			return fmt.Errorf("the stream of commits ended: %w", err)
		}
		it, err := c.decode(f)
		if err == nil {
			err = use(it)
		}
		if err != nil {
			return err
		}
	}
}

// decode reads one frame of the stream.
func (c *coreClient) decode(f *stream.Commit) (*transaction, error) {
	switch f.Kind {
	case stream.Settings:
		return &transaction{settings: f.Head}, nil
	case stream.Change:
	default:
		return nil, stream.ErrMalformed
	}
	h, err := c.decodeHead(f.Head, f.Mod)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(f.Ops, func(op stream.Op) bool { return !isContent(op.Key) }) {
		return nil, stream.ErrMalformed
	}
	it := &transaction{head: h, note: h.Note, ops: f.Ops, mod: h.mod, watched: h.mod}
	if len(f.Note) > 0 {
		it.note = f.Note
	}
	return it, nil
}

// report sends the report of this leaf to the core box, and returns the name of the box that runs the controllers (has the writer's turn).
func (c *coreClient) report(ctx context.Context, of Report) (writer string, err error) {
	r := LeafReport{Instance: c.instance, Report: of}
	c.mu.Lock()
	core, node := c.cores[c.at], c.node
	r.Report.Core, r.First = core, c.fresh
	if !bytes.Equal(node, c.sent) {
		r.Node = node
	}
	c.mu.Unlock()
	body, err := json.Marshal(r)
	if err != nil {
		return "", err
	}
	var a reportAnswer
	if err := c.get(ctx, http.MethodPost, "/report", nil, body, &a); err != nil {
		return "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cores[c.at] == core {
		c.fresh, c.sent = false, node
	}
	return a.Writer, nil
}

func (c *coreClient) boxes(ctx context.Context) ([]Box, error) {
	var a boxesAnswer
	err := c.get(ctx, http.MethodGet, "/boxes", nil, nil, &a)
	return a.Boxes, err
}

func (c *coreClient) holders(ctx context.Context) (map[string]string, error) {
	var a boxesAnswer
	if err := c.get(ctx, http.MethodGet, "/boxes", nil, nil, &a); err != nil {
		return nil, c.errUnreachable(err)
	}
	return a.Holders, nil
}

func (c *coreClient) refusal() error {
	return &engine.AwayError{Why: fmt.Sprintf("this box is a leaf of its fleet and changes nothing itself: ask a core box, as %s", c.cfg.Cores[0])}
}

func (c *coreClient) from() string { return "its core boxes" }

func (c *coreClient) silence(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (c *coreClient) close() error {
	c.http.CloseIdleConnections()
	return nil
}

// SetNode sets the Node object of this leaf, as JSON, which the core box stores. On a box that follows etcd it does nothing.
func (e *member) SetNode(node []byte) {
	if c, is := e.origin.(*coreClient); is {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.node = node
	}
}

// Core returns the URL of the core box that a leaf follows now; "" on a box that follows etcd.
func (e *member) Core() string {
	if c, is := e.origin.(*coreClient); is {
		core, _ := c.current()
		return core
	}
	return ""
}

// RoundTrip forwards a request of an API client of this leaf to the core box in use, or to the next core box if that one cannot be reached. It
// implements http.RoundTripper.
func (e *member) RoundTrip(r *http.Request) (*http.Response, error) {
	c, is := e.origin.(*coreClient)
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

// returnUntil probes the core boxes that the leaf prefers to the current one, and switches back to one of them when it is stable. It runs until ctx
// is done, and is idle while the leaf follows its first choice.
func (c *coreClient) returnUntil(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		at, left := c.at, c.left
		c.mu.Unlock()
		if at == 0 {
			select {
			case <-ctx.Done():
			case <-left:
			}
			continue
		}
		if !sleep(ctx, probeEvery/c.cfg.pace()) {
			return
		}
		for i := range at {
			answered := c.probe(ctx, c.cores[i])
			c.mu.Lock()
			c.selector.probed(i, answered, time.Now())
			c.mu.Unlock()
		}
		c.goBack(time.Now())
	}
}

// probe reports whether a core box answers that it would serve this leaf.
func (c *coreClient) probe(ctx context.Context, core string) bool {
	resp, err := c.askOne(ctx, core, http.MethodGet, "/head", nil, nil, coreTimeout)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxCoreAnswer))
	return err == nil
}

// goBack switches to a core box that this leaf prefers, if that has answered probes for long enough. The stream of commits continues
// there at the same position.
func (c *coreClient) goBack(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	core, is := c.selector.better(c.at, now)
	if !is {
		return
	}
	c.cfg.Log.Info("goes back to the core box that this leaf prefers", "core", c.cores[core], "from", c.cores[c.at])
	c.selector.returned(core, now)
	c.moveTo(core)
}

// current returns the URL of the core box in use. left is closed when the leaf switches to another one.
func (c *coreClient) current() (core string, left <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cores[c.at], c.left
}

// leaveCore switches from the given core box to the next one, unless the leaf has already switched to another one.
func (c *coreClient) leaveCore(core string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.cores) == 1 || c.cores[c.at] != core {
		return
	}
	c.selector.left(c.at, time.Now())
	c.moveTo((c.at + 1) % len(c.cores))
}

// moveTo switches to another core box. c.mu must be held.
func (c *coreClient) moveTo(core int) {
	c.at, c.fresh, c.sent = core, true, nil
	close(c.left)
	c.left = make(chan struct{})
	c.http.CloseIdleConnections()
}

// coreError is the error answer of a core box, with the URL of the box.
type coreError struct {
	core string
	refusal
}

func (e *coreError) Error() string { return fmt.Sprintf("core box %s says: %s", e.core, e.Message) }

// ask sends a request to the core boxes in turn, until one does not refuse it because of its own state. The caller closes the body of
// the answer. left is closed when the leaf switches to another core box.
func (c *coreClient) ask(ctx context.Context, method, path string, query url.Values, body []byte, patience time.Duration) (resp *http.Response, left <-chan struct{}, err error) {
	var failed []error
	for range c.cores {
		core, left := c.current()
		resp, err := c.askOne(ctx, core, method, path, query, body, patience)
		if err == nil {
			return resp, left, nil
		}
		if refused := (*coreError)(nil); errors.As(err, &refused) {
			switch refused.Code {
			case http.StatusGone:
				return nil, nil, errForgotten
			case http.StatusPreconditionFailed:
				return nil, nil, errNoSuchCommit
			}
		}
		failed = append(failed, err)
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.leaveCore(core)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, nil, c.verdict(failed)
}

// verdict combines the errors of all core boxes. If the state of one of them is Lagging, or one in which it ignores etcd's content, the result is a
// heldError with that state. If one of them refuses the name of this leaf, the result is a heldError with the state Namesake.
func (c *coreClient) verdict(failed []error) error {
	for _, err := range failed {
		var refused *coreError
		if !errors.As(err, &refused) {
			continue
		}
		switch s := (State{Kind: refused.Details.State}); {
		case s.Held(), s.Kind == Lagging:
			return &heldError{s.Kind, err.Error()}
		case s.Kind == Namesake && refused.Code == http.StatusConflict:
			return c.namesake()
		}
	}
	return errors.Join(failed...)
}

// askOne sends a request to one core box.
func (c *coreClient) askOne(ctx context.Context, core, method, path string, query url.Values, body []byte, patience time.Duration) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(patience, func() { cancel(fmt.Errorf("core box %s does not answer", core)) })
	req, err := http.NewRequestWithContext(ctx, method, core+CommitsPath+path+"?"+query.Encode(), bytes.NewReader(body))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := c.http.Do(req)
	if !late.Stop() && err == nil {
		resp.Body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil && !errors.Is(cause, context.Canceled) {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = &endsContext{resp.Body, func() { cancel(nil) }}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	refused := &coreError{core: core}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxLeafReport))
	if err != nil || json.Unmarshal(text, &refused.refusal) != nil || refused.Kind != "Status" {
		refused.Message = fmt.Sprintf("%s: is it `svcctl serve --listen` of this version that answers there?", resp.Status)
	}
	if refused.Code = resp.StatusCode; refused.Code == http.StatusUnauthorized || refused.Code == http.StatusForbidden {
		refused.Message += " (the certificate in --core-cert is to be of the CA that core boxes have in --leaf-cacert, and to name this box)"
	}
	return nil, refused
}

// endsContext is a response body that cancels the context of its request when it is closed.
type endsContext struct {
	io.ReadCloser
	end func()
}

func (b *endsContext) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// get sends a GET request and decodes the JSON of the answer.
func (c *coreClient) get(ctx context.Context, method, path string, query url.Values, body []byte, v any) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, _, err := c.ask(call, method, path, query, body, coreTimeout)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(io.LimitReader(resp.Body, maxCoreAnswer)).Decode(v)
}

// CommitsPath is the URL path of the stream of commits on a core box.
const CommitsPath = "/svcctl/v1/commits"

// maxLeafReport bounds the body of a leaf's report, in bytes.
const maxLeafReport = 64 << 10

// headAnswer is the JSON answer of a core box to a leaf's request for the head.
type headAnswer struct {
	Settings *settings `json:"settings,omitempty"`
	Head     *head     `json:"head,omitempty"` // nil if the fleet has no head
	Mod      int64     `json:"mod,omitempty"`
	// Known is the revision of etcd up to which Head is the newest one.
	Known int64 `json:"known"`
}

// boxesAnswer is the JSON answer of a core box to a leaf's request for the boxes of the fleet and for the boxes that read each source.
type boxesAnswer struct {
	Boxes   []Box             `json:"boxes"`
	Holders map[string]string `json:"holders"`
}

// reportAnswer is the JSON answer of a core box to the report of a leaf.
type reportAnswer struct {
	Writer string `json:"writer,omitempty"`
}

// refusal is an error answer of a core box, in the form of a Kubernetes Status.
type refusal struct {
	Kind    string `json:"kind"`
	Version string `json:"apiVersion"`
	Status  string `json:"status"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Details struct {
		State Kind `json:"state,omitempty"` // of the core box
	} `json:"details"`
	Code int `json:"code"`
}

// LeafReport is the JSON that a leaf sends to its core box with each heartbeat.
type LeafReport struct {
	// Instance identifies the data directory of the leaf.
	Instance string `json:"instance"`
	Report   Report `json:"report"`
	// First is set in the first report to a core box after the leaf has started or switched to it.
	First bool `json:"anew,omitempty"`
	// Node is the Node object of the leaf, if that has changed since the last report.
	Node json.RawMessage `json:"node,omitempty"`
}
