package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"svcctl.io/svcctl/api/wire"
)

const rolloutPath = "/svcctl/v1/rollout"

// Rollout returns the rollout that is under way, or the last one; IsNotFound: there was none.
func (c *Client) Rollout(ctx context.Context) (r wire.Rollout, err error) {
	err = c.call(ctx, http.MethodGet, rolloutPath, nil, callTimeout, &r)
	return r, err
}

// BeginRollout begins a rollout. What is written belongs to it once Client.InRollout is its ID; no box programs it before
// MoveRollout starts it. onFailure is wire.OnFailureStop or wire.OnFailureUndo.
func (c *Client) BeginRollout(ctx context.Context, steps string, bake, within time.Duration, onFailure string) (r wire.Rollout, err error) {
	query := url.Values{"steps": {steps}, "bake": {bake.String()}, "within": {within.String()}, "onFailure": {onFailure}}
	err = c.call(ctx, http.MethodPost, rolloutPath+"/begin", query, callTimeout, &r)
	return r, err
}

// MoveRollout starts, pauses, resumes or undoes (wire.RolloutUndo) the rollout that is under way. An id that is not "" must be its.
func (c *Client) MoveRollout(ctx context.Context, verb, id string) (r wire.Rollout, err error) {
	query := url.Values{}
	if id != "" {
		query.Set("id", id)
	}
	err = c.call(ctx, http.MethodPost, rolloutPath+"/"+verb, query, callTimeout, &r)
	return r, err
}
