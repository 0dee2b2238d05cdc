package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// current is the core box that is asked, left is closed when another one is.
func (c *atCore) current() (core string, left <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cores[c.at], c.left
}

// leaveCore has the next core box asked, unless that is so already.
func (c *atCore) leaveCore(core string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.cores) == 1 || c.cores[c.at] != core {
		return
	}
	c.preference.left(c.at, time.Now())
	c.moveTo((c.at + 1) % len(c.cores))
}

// moveTo has another core box asked. c.mu must be held.
func (c *atCore) moveTo(core int) {
	c.at, c.anew, c.told = core, true, nil
	close(c.left)
	c.left = make(chan struct{})
	c.http.CloseIdleConnections()
}

// coreError is the refusal of a core box.
type coreError struct {
	core string
	refusal
}

func (e *coreError) Error() string { return fmt.Sprintf("core box %s says: %s", e.core, e.Message) }

// ask asks the core boxes until one does not refuse for its own state. The body of the answer is the caller's to close; left is
// closed when another core box is asked than the one that it is of.
func (c *atCore) ask(ctx context.Context, method, path string, query url.Values, body []byte, patience time.Duration) (resp *http.Response, left <-chan struct{}, err error) {
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

// verdict combines the refusals of all core boxes: the state of one that holds something, which the leaf holds too.
func (c *atCore) verdict(failed []error) error {
	for _, err := range failed {
		var refused *coreError
		if !errors.As(err, &refused) {
			continue
		}
		switch s := (State{Kind: refused.Details.State}); {
		case s.Held(), s.Kind == Lagging:
			return &heldError{s.Kind, err.Error()}
		case s.Kind == Namesake && refused.Code == http.StatusConflict:
			return &heldError{Namesake, fmt.Sprintf("another box of this fleet is named %s: give one of the two another --node-name", c.e.cfg.Box)}
		}
	}
	return errors.Join(failed...)
}

// askOne asks one core box.
func (c *atCore) askOne(ctx context.Context, core, method, path string, query url.Values, body []byte, patience time.Duration) (*http.Response, error) {
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

// endsContext is a body whose request ends when it is closed.
type endsContext struct {
	io.ReadCloser
	end func()
}

func (b *endsContext) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// get asks for an answer that is no stream.
func (c *atCore) get(ctx context.Context, method, path string, query url.Values, body []byte, v any) error {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, _, err := c.ask(call, method, path, query, body, coreTimeout)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(io.LimitReader(resp.Body, maxCoreAnswer)).Decode(v)
}
