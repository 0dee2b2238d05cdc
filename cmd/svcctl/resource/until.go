package resource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
)

// ErrNotInTime means that the time to wait is over.
var ErrNotInTime = errors.New("not in time")

// errMet ends a watch whose condition is met.
var errMet = errors.New("met")

// Condition judges an object, which is nil when it is not there.
type Condition func(o client.Object) bool

// Gone is met by an object that is not there, or is another one than that with the uid.
func Gone(uid string) Condition {
	return func(o client.Object) bool { return o == nil || uid != "" && TextField(o, "metadata", "uid") != uid }
}

// Until watches an object until a condition is met. Errors: errNotInTime; those of the
// appliance.
func Until(ctx context.Context, c *client.Client, t Target, timeout time.Duration, met Condition) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrNotInTime)
	defer cancel()
	path := CollectionPath(t.Kind, t.Namespace)
	query := url.Values{"fieldSelector": {"metadata.name=" + t.Name}}
	for {
		version, done, err := list(ctx, c, path, query, met)
		if err == nil && !done {
			done, err = watch(ctx, c, path, query, version, met)
		}
		switch f, refused := errors.AsType[*wire.Failure](err); {
		case done:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !(refused && f.Reason == wire.ReasonExpired):
			return err
		}
	}
}

// list judges the object as it is now.
func list(ctx context.Context, c *client.Client, path string, query url.Values, met Condition) (version string, done bool, err error) {
	var found client.Object
	meta, err := c.Each(ctx, path, query, func(raw json.RawMessage) error {
		o, err := DecodeObject(raw)
		found = o
		return err
	})
	if err != nil {
		return "", false, err
	}
	return meta.ResourceVersion, met(found), nil
}

// watch judges the object after each change.
func watch(ctx context.Context, c *client.Client, path string, query url.Values, version string, met Condition) (done bool, err error) {
	q := url.Values{"resourceVersion": {version}}
	maps.Copy(q, query)
	err = c.Watch(ctx, path, q, func(change client.Change) error {
		o := change.Object
		switch change.Type {
		case client.Bookmark:
			return nil
		case client.Deleted:
			o = nil
		}
		if met(o) {
			return errMet
		}
		return nil
	})
	if errors.Is(err, errMet) {
		return true, nil
	}
	return false, err
}

// Kept returns why an object that is being deleted still exists, with the next step.
func Kept(ctx context.Context, c *client.Client, t Target) string {
	o, err := c.Get(ctx, t.Path(), nil)
	if err != nil {
		return "whether finalizers keep it is not known: " + output.OneLine(err.Error())
	}
	return Keepers(t, o)
}

// Keepers names the finalizers of an object that is to go, and what removes them.
func Keepers(t Target, o client.Object) string {
	names := finalizersOf(o)
	if TextField(o, "metadata", "deletionTimestamp") == "" {
		return "its removal was not requested: `svcctl delete " + t.named() + "` does"
	}
	if len(names) == 0 && t.isNamespace() {
		return "objects in it keep it, which are being removed: `svcctl get svc,endpointslices,pods,configmaps,secrets -n " + t.Name + "` lists what finalizers keep of them"
	}
	if len(names) == 0 {
		return "it goes in this moment: ask once more"
	}
	return fmt.Sprintf("finalizers keep it: %s; the program that set them has to remove them; if that was a controller of a cluster, which does not run here, remove metadata.finalizers: `svcctl edit %s`",
		strings.Join(names, ", "), t.named())
}

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
		switch port := e.Service + " " + e.Protocol + " " + e.Port; {
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
