package resource

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/store/object"
)

// ServiceLabel names the Service that an EndpointSlice belongs to.
const ServiceLabel = "kubernetes.io/service-name"

// Typed reads the object at a path into o.
func Typed(ctx context.Context, c *client.Client, path string, o any) error {
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

// TypedList are the objects that a query finds at a path.
func TypedList[T any](ctx context.Context, c *client.Client, path string, query url.Values) ([]*T, error) {
	var all []*T
	_, err := c.Each(ctx, path, query, func(raw json.RawMessage) error {
		o := new(T)
		all = append(all, o)
		return json.Unmarshal(raw, o)
	})
	return all, err
}

// SlicesOf are the EndpointSlices of a Service.
func SlicesOf(ctx context.Context, c *client.Client, namespace, name string) ([]*object.EndpointSlice, error) {
	k, _ := KindNamed("endpointslices")
	return TypedList[object.EndpointSlice](ctx, c, CollectionPath(k, namespace), url.Values{"labelSelector": {ServiceLabel + "=" + name}})
}

// finalizersOf returns the finalizers of an object.
func finalizersOf(o client.Object) []string {
	var names []string
	list, _ := Field(o, "metadata", "finalizers").([]any)
	for _, f := range list {
		if name, is := f.(string); is {
			names = append(names, name)
		}
	}
	return names
}

// encodeJSON is JSON for people; the first line is not indented.
func encodeJSON(o any, indent string) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent(indent, "    ")
	if err := e.Encode(o); err != nil {
		return "", fmt.Errorf("encode as JSON: %w", err)
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// Field follows names into an object; nil when there is nothing.
func Field(o any, names ...string) any {
	for _, name := range names {
		m, is := o.(map[string]any)
		if !is {
			return nil
		}
		o = m[name]
	}
	return o
}

// TextField is field for texts and numbers; "" when there is none.
func TextField(o any, names ...string) string {
	switch v := Field(o, names...).(type) {
	case nil, map[string]any, []any:
		return ""
	case string:
		return v
	default:
		return fmt.Sprint(v)
	}
}

func NameOf(o client.Object) string { return TextField(o, "metadata", "name") }

func NamespaceOf(o client.Object) string { return TextField(o, "metadata", "namespace") }

func VersionOf(o client.Object) string { return TextField(o, "metadata", "resourceVersion") }

// DecodeObject reads an object, numbers as they are written.
func DecodeObject(raw []byte) (client.Object, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var o client.Object
	return o, d.Decode(&o)
}
