package resource

import (
	"bytes"
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
	"svcctl.io/svcctl/store/object"
)

// List returns the objects of a kind in a namespace that a query selects. plural is the plural name of the kind; namespace "" means all namespaces.
func List[T any](ctx context.Context, c *client.Client, plural, namespace string, query url.Values) ([]*T, error) {
	k, _ := KindNamed(plural)
	var all []*T
	_, err := c.Each(ctx, CollectionPath(k, namespace), query, func(raw json.RawMessage) error {
		o := new(T)
		all = append(all, o)
		return json.Unmarshal(raw, o)
	})
	return all, err
}

// Each calls f for the object of a target. If the target is a kind, it calls f for each object that a query selects.
func Each(ctx context.Context, c *client.Client, t Target, query url.Values, f func(Target, client.Object) error) error {
	if t.Name != "" {
		o, err := c.Get(ctx, t.Path())
		if err != nil {
			return err
		}
		return f(t, o)
	}
	_, err := c.Each(ctx, t.Path(), query, func(raw json.RawMessage) error {
		o, err := DecodeObject(raw)
		if err != nil {
			return fmt.Errorf("read an object of %s: %w", t.Path(), err)
		}
		return f(Target{t.Kind, NamespaceOf(o), NameOf(o)}, o)
	})
	return err
}

// SlicesOf returns the EndpointSlices of a Service.
func SlicesOf(ctx context.Context, c *client.Client, namespace, name string) ([]*object.EndpointSlice, error) {
	return List[object.EndpointSlice](ctx, c, "endpointslices", namespace, url.Values{"labelSelector": {object.LabelServiceName + "=" + name}})
}

// Field returns the value at a field path in an object; nil if there is none.
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

// TextField returns the string or number at a field path in an object, as text; "" if there is none.
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

// DecodeObject decodes an object from JSON. Numbers keep their notation (json.Number).
func DecodeObject(raw []byte) (client.Object, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var o client.Object
	return o, d.Decode(&o)
}

// OpenConnections returns " with N open connections" for Services ("namespace/name"); "" if there are none, or the appliance does not list them.
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

// MostConnections is the maximum number of connections that can be requested at once.
const MostConnections = 100_000

// IsClosed reports whether a TCP connection is closed. state is the name of its TCP state in conntrack.
func IsClosed(state string) bool {
	return state == "TIME_WAIT" || state == "CLOSE"
}

// IsAddress reports whether a word starts like an IP address rather than like a kind.
func IsAddress(word string) bool { return word != "" && strings.ContainsAny(word[:1], "0123456789[") }

// mostAddresses is the maximum number of Service ports whose addresses Addresses returns.
const mostAddresses = 1000

// Addresses returns, for completion, the addresses and ports of Services, or of their endpoints if endpoints is set. Each is followed by a tab and
// the name of the Service port.
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

// ErrNotInTime is the error when a wait reaches its timeout.
var ErrNotInTime = errors.New("not in time")

// errMet ends a watch whose condition is met.
var errMet = errors.New("met")

// Condition reports whether an object meets the condition of a wait. o is nil if the object does not exist.
type Condition func(o client.Object) bool

// Gone returns a Condition that is met when the object does not exist or, unless uid is "", has another UID.
func Gone(uid string) Condition {
	return func(o client.Object) bool { return o == nil || uid != "" && TextField(o, "metadata", "uid") != uid }
}

// Until waits until an object meets a condition. It returns ErrNotInTime after the timeout, or an error from the appliance.
func Until(ctx context.Context, c *client.Client, t Target, timeout time.Duration, met Condition) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrNotInTime)
	defer cancel()
	path, query := CollectionPath(t.Kind, t.Namespace), url.Values{"fieldSelector": {"metadata.name=" + t.Name}}
	judge := func(o client.Object) error {
		if met(o) {
			return errMet
		}
		return nil
	}
	list := func() (string, error) {
		var found client.Object
		version, err := c.Each(ctx, path, query, func(raw json.RawMessage) (err error) {
			found, err = DecodeObject(raw)
			return err
		})
		if err == nil {
			err = judge(found)
		}
		return version, err
	}
	version, err := list()
	if err == nil {
		err = Follow(ctx, version, query, list, func(query url.Values, version *string) error {
			return c.Watch(ctx, path, query, func(change client.Change) error {
				*version = VersionOf(change.Object)
				switch change.Type {
				case client.Bookmark:
					return nil
				case client.Deleted:
					change.Object = nil
				}
				return judge(change.Object)
			})
		})
	}
	switch {
	case errors.Is(err, errMet):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// Follow watches changes after version, until an error occurs or ctx is done. watch sets *version to the version of each change; when it ends, Follow
// calls it again with the last version. If the version has expired, changes were missed; Follow then calls list and continues from the version that
// list returns.
func Follow(ctx context.Context, version string, query url.Values, list func() (version string, err error), watch func(query url.Values, version *string) error) (err error) {
	for err == nil && ctx.Err() == nil {
		q := maps.Clone(query)
		q.Set("resourceVersion", version)
		q.Set("allowWatchBookmarks", "true")
		err = watch(q, &version)
		if f, is := errors.AsType[*wire.Failure](err); is && f.Reason == wire.ReasonExpired {
			version, err = list()
		}
	}
	return err
}

// Kept returns the reason why an object that is being deleted still exists, and what to do about it.
func Kept(ctx context.Context, c *client.Client, t Target) string {
	o, err := c.Get(ctx, t.Path())
	if err != nil {
		return "whether finalizers keep it is not known: " + output.OneLine(err.Error())
	}
	return Keepers(t, o)
}

// Keepers describes the finalizers that delay the deletion of an object, and how to remove them.
func Keepers(t Target, o client.Object) string {
	list, _ := Field(o, "metadata", "finalizers").([]any)
	names := object.Texts(list, func(name any) string { return fmt.Sprint(name) })
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

// settleEvery is the interval at which Settle checks the Services.
const settleEvery = 300 * time.Millisecond

// Settle waits until the states of Services ("namespace/name") are certain: they have endpoints or a problem, and their health checks have first
// results. It returns the status then, or after the timeout.
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
		if err := client.Pause(ctx, settleEvery); err != nil {
			return nil, err
		}
	}
}

// mostAsked is the maximum number of Services for which Settle requests health checks one by one. For more Services it requests the health checks of
// all Services at once.
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
		if checking(h.Endpoints) || slices.ContainsFunc(h.Endpoints, func(e wire.EndpointHealth) bool { return e.State == wire.HealthDown && !hasProblem(s, e.Service) }) {
			return true, nil // the status is of before the check's result
		}
	}
	return false, nil
}

// hasProblem reports whether the status has a problem about a Service ("namespace/name").
func hasProblem(s *wire.Status, service string) bool {
	return slices.ContainsFunc(s.Problems, func(p wire.Problem) bool { return p.Object == object.ServiceRef(service).String() })
}

// checking reports whether a port still waits for health checks: one of its endpoints has no result yet, and none has passed.
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
