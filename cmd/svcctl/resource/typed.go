package resource

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/output"
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

// OpenConnections returns " with N open connections" of the Services, each "namespace/name"; "" when there are none,
// or the appliance does not list them.
func OpenConnections(ctx context.Context, c *client.Client, services map[string]bool) string {
	open := 0
	list, err := client.Call(ctx, c, wire.GetConnections, wire.ConnectionsQuery{Limit: MostConnections})
	if err != nil {
		return "" // the question is asked without the number
	}
	for i := range list.Connections {
		if conn := &list.Connections[i]; services[conn.Namespace+"/"+conn.Service] && !IsClosed(conn.State) {
			open++
		}
	}
	if open == 0 {
		return ""
	}
	return " with " + output.Count(open, "open connection")
}

// MostConnections is the limit of connections in one request.
const MostConnections = 100_000

// IsClosed reports whether a TCP connection of a state, as conntrack names it, is over.
func IsClosed(state string) bool {
	return state == "TIME_WAIT" || state == "CLOSE"
}

// IsAddress reports whether a word begins as an address does, and not as a kind.
func IsAddress(word string) bool { return word != "" && strings.ContainsAny(word[:1], "0123456789[") }

// mostAddresses bounds the Service ports of Addresses.
const mostAddresses = 1000

// Addresses returns the addresses of Services with their ports, or those of their endpoints, each with the port of the Service
// behind a tab, for completion.
func Addresses(ctx context.Context, c *client.Client, endpoints bool) (all []string, err error) {
	seen, err := client.Call(ctx, c, wire.GetTraffic, wire.TrafficQuery{Sort: "name", Limit: mostAddresses, Endpoints: endpoints})
	if err != nil {
		return nil, err
	}
	for i := range seen.Ports {
		p := &seen.Ports[i]
		of := p.Frontends
		if endpoints {
			of = nil
			for k := range p.Endpoints {
				of = append(of, p.Endpoints[k].Endpoint)
			}
		}
		for _, at := range of {
			if IsAddress(at) { // no node port
				all = append(all, at+"\t"+output.ServicePort(p.Namespace, p.Service, p.Port))
			}
		}
	}
	slices.Sort(all)
	return all, nil
}
