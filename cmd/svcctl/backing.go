package main

import (
	"context"
	"encoding/json"
	"net/url"

	"svcctl.io/svcctl/api/client"
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
