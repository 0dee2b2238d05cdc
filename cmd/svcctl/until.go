package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// errNotInTime means that the time to wait is over.
var errNotInTime = errors.New("not in time")

// errMet ends a watch whose condition is met.
var errMet = errors.New("met")

// condition judges an object, which is nil when it is not there.
type condition func(o client.Object) bool

// gone is met by an object that is not there, or is another one than that with the uid.
func gone(uid string) condition {
	return func(o client.Object) bool { return o == nil || uid != "" && textField(o, "metadata", "uid") != uid }
}

// until watches an object until a condition is met. Errors: errNotInTime; those of the
// appliance.
func until(ctx context.Context, c *client.Client, t target, timeout time.Duration, met condition) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errNotInTime)
	defer cancel()
	path := collectionPath(t.kind, t.namespace)
	query := url.Values{"fieldSelector": {"metadata.name=" + t.name}}
	for {
		version, done, err := look(ctx, c, path, query, met)
		if err == nil && !done {
			done, err = follow(ctx, c, path, query, version, met)
		}
		f, refused := errors.AsType[*wire.Failure](err)
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !(refused && f.Reason == wire.ReasonExpired):
			return err
		}
	}
}

// look judges the object as it is now.
func look(ctx context.Context, c *client.Client, path string, query url.Values, met condition) (version string, done bool, err error) {
	var found client.Object
	meta, err := c.Each(ctx, path, query, func(raw json.RawMessage) error {
		o, err := decodeObject(raw)
		found = o
		return err
	})
	if err != nil {
		return "", false, err
	}
	return meta.ResourceVersion, met(found), nil
}

// follow judges the object after each change.
func follow(ctx context.Context, c *client.Client, path string, query url.Values, version string, met condition) (done bool, err error) {
	q := url.Values{"resourceVersion": {version}}
	for key, values := range query {
		q[key] = values
	}
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

// kept says why an object that was to go is still there, and what can be done.
func kept(ctx context.Context, c *client.Client, t target) string {
	o, err := c.Get(ctx, t.path(), nil)
	if err != nil {
		return "whether finalizers keep it is not known: " + oneLine(err.Error())
	}
	return keepers(t, o)
}

// keepers names the finalizers of an object that is to go, and who can take them away.
func keepers(t target, o client.Object) string {
	names := finalizersOf(o)
	if textField(o, "metadata", "deletionTimestamp") == "" {
		return "nobody has asked for its removal: `svcctl delete " + t.named() + "` does"
	}
	if len(names) == 0 && t.isNamespace() {
		return "objects in it keep it, which are being removed: `svcctl get svc,endpointslices,pods,configmaps,secrets -n " + t.name + "` lists what finalizers keep of them"
	}
	if len(names) == 0 {
		return "it goes in this moment: ask once more"
	}
	return fmt.Sprintf("finalizers keep it: %s; who put them there has to take them away; if that was a controller of a cluster, which does not run here, remove metadata.finalizers: `svcctl edit %s`",
		strings.Join(names, ", "), t.named())
}
