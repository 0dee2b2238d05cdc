package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/describe"
	"svcctl.io/svcctl/store/object"
)

// serviceLabel names the Service that an EndpointSlice belongs to.
const serviceLabel = "kubernetes.io/service-name"

// typed reads the object at a path into o.
func typed(ctx context.Context, c *client.Client, path string, o any) error {
	raw, err := c.Get(ctx, path, nil)
	if err != nil {
		return err
	}
	body, err := json.Marshal(raw)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, o)
}

// typedList are the objects that a query finds at a path.
func typedList[T any](ctx context.Context, c *client.Client, path string, query url.Values) ([]*T, error) {
	var all []*T
	_, err := c.Each(ctx, path, query, func(raw json.RawMessage) error {
		o := new(T)
		all = append(all, o)
		return json.Unmarshal(raw, o)
	})
	return all, err
}

// slicesOf are the EndpointSlices of a Service.
func slicesOf(ctx context.Context, c *client.Client, namespace, name string) ([]*object.EndpointSlice, error) {
	k, _ := kindNamed("endpointslices")
	return typedList[object.EndpointSlice](ctx, c, collectionPath(k, namespace), url.Values{"labelSelector": {serviceLabel + "=" + name}})
}

// hasReady reports whether a slice has an endpoint that is ready.
func hasReady(s *object.EndpointSlice) bool {
	return slices.ContainsFunc(s.Endpoints, func(e object.Endpoint) bool { return describe.Ready(&e) })
}

// untilBacked waits until a Service has an endpoint that is ready.
func untilBacked(ctx context.Context, c *client.Client, service target, timeout time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNotInTime)
	defer cancel()
	k, _ := kindNamed("endpointslices")
	path := collectionPath(k, service.namespace)
	query := url.Values{"labelSelector": {serviceLabel + "=" + service.name}}
	for {
		backed := false
		meta, err := c.Each(ctx, path, query, func(raw json.RawMessage) error {
			var s object.EndpointSlice
			err := json.Unmarshal(raw, &s)
			backed = backed || hasReady(&s)
			return err
		})
		if err == nil && !backed {
			backed, err = follow(ctx, c, path, query, meta.ResourceVersion, func(o client.Object) bool {
				var s object.EndpointSlice
				body, err := json.Marshal(o)
				return err == nil && json.Unmarshal(body, &s) == nil && hasReady(&s)
			})
		}
		f, refused := errors.AsType[*wire.Failure](err)
		switch {
		case backed:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !(refused && f.Reason == wire.ReasonExpired):
			return err
		}
	}
}
