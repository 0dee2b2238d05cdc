package resource

import (
	"context"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// settleEvery is the interval at which Services that are not decided yet are looked at.
const settleEvery = 300 * time.Millisecond

// Settle waits until Services, each as "namespace/name", are judged: those that came a moment ago have their endpoints
// or a problem, and health checks have their first results. At the end of the time it gives the status as it is.
func Settle(ctx context.Context, c *client.Client, services []string, timeout time.Duration) (*wire.Status, error) {
	deadline := time.Now().Add(timeout)
	for {
		s, err := c.Status(ctx)
		if err != nil {
			return nil, err
		}
		undecided, err := isUndecided(ctx, c, s, services)
		if err != nil || !undecided || time.Now().After(deadline) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(settleEvery):
		}
	}
}

// mostAsked bounds the Services whose checks are asked for one by one; those of more are asked for together.
const mostAsked = 20

func isUndecided(ctx context.Context, c *client.Client, s *wire.Status, services []string) (bool, error) {
	of := func(key string) bool { return slices.Contains(services, key) }
	if slices.ContainsFunc(s.Verdict.Settling, of) {
		return true, nil
	}
	names := services
	if len(services) > mostAsked {
		names = []string{"/"} // all of them
	}
	for _, key := range names {
		namespace, name, _ := strings.Cut(key, "/")
		h, err := client.Call(ctx, c, wire.GetHealth, wire.ObjectQuery{Namespace: namespace, Name: name})
		if err != nil {
			return false, err
		}
		if len(services) > mostAsked {
			h.Endpoints = slices.DeleteFunc(h.Endpoints, func(e wire.EndpointHealth) bool { return !of(e.Service) })
		}
		if checking(h.Endpoints) {
			return true, nil
		}
	}
	return false, nil
}

// checking reports whether a port has no endpoint that passed its check yet, and one whose check is not decided.
func checking(endpoints []wire.EndpointHealth) bool {
	passed, open := map[string]bool{}, map[string]bool{}
	for i := range endpoints {
		e := &endpoints[i]
		port := e.Service + " " + e.Protocol + " " + e.Port
		switch {
		case e.State == wire.HealthUp && e.Passes > 0:
			passed[port] = true
		case e.State == wire.HealthUp || e.State == wire.HealthNew && e.Failures == 0 || e.State == wire.HealthNotAsked && e.Why == "":
			open[port] = true
		}
	}
	for port := range open {
		if !passed[port] {
			return true
		}
	}
	return false
}
