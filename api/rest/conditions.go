package rest

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/store/object"
)

// Conditions computes the conditions of Services. They are not stored: an object with the same resourceVersion may be
// shown with others, and a watch delivers it again.
type Conditions interface {
	// Of returns the conditions of a Service as it is stored; settled is false while they wait for its version.
	Of(*object.Service) (conditions []object.Condition, settled bool)
	// Since returns the Services, "namespace/name", whose conditions changed after a turn, and the newest turn; known
	// is false when they are too many.
	Since(turn uint64) (keys []string, newest uint64, known bool)
	// Changed is closed when conditions may be others than at the call.
	Changed() <-chan struct{}
}

// servicesOf shows Services with their conditions.
func servicesOf(plain stored, by Conditions) adapted {
	show := func(svc *object.Service) object.Object {
		conditions, _ := by.Of(svc)
		return withConditions(svc, conditions)
	}
	return adapt(plain, func() func(*object.Service) object.Object { return show })
}

// withConditions returns a Service with the computed conditions in place of stored ones of their types.
func withConditions(svc *object.Service, computed []object.Condition) *object.Service {
	c := *svc
	c.Status.Conditions = slices.Concat(computed, slices.DeleteFunc(slices.Clone(svc.Status.Conditions), func(stored object.Condition) bool {
		return slices.ContainsFunc(computed, func(c object.Condition) bool { return c.Type == stored.Type })
	}))
	return &c
}

// conditionNews delivers changes of conditions to one watch of Services.
type conditionNews struct {
	by      Conditions
	turn    uint64
	pending map[viewKey]struct{} // shown before their version was settled
}

// recently is the age of a transition that the client of a new watch may not have seen in its list.
const recently = time.Minute

// newsOf returns the news for a watch; nil: it shows no conditions.
func (l *watchSession) newsOf() *conditionNews {
	by := l.server.conditions
	if by == nil || l.request.kind.Name != object.KindService || l.request.form.shape != whole {
		return nil
	}
	n := &conditionNews{by: by, pending: map[viewKey]struct{}{}}
	_, n.turn, _ = by.Since(0)
	return n
}

// catchUp notes the Services that may be shown otherwise than the client has them from before the watch.
func (n *conditionNews) catchUp(l *watchSession) {
	if n == nil {
		return
	}
	objects, _, err := l.server.store.List(object.KindService, l.request.namespace, 0)
	if err != nil {
		return
	}
	for _, o := range objects {
		if !l.options.selects(o) {
			continue
		}
		conditions, settled := n.by.Of(o.(*object.Service))
		fresh := slices.ContainsFunc(conditions, func(c object.Condition) bool { return l.server.now().Sub(c.LastTransitionTime) < recently })
		if !settled || fresh {
			n.pending[viewKey{o.GetMeta().Namespace, o.GetMeta().Name}] = struct{}{}
		}
	}
}

// seen notes a Service that was sent.
func (n *conditionNews) seen(o object.Object) {
	if svc, is := o.(*object.Service); n != nil && is {
		key := viewKey{svc.Metadata.Namespace, svc.Metadata.Name}
		if _, settled := n.by.Of(svc); settled {
			delete(n.pending, key)
		} else {
			n.pending[key] = struct{}{}
		}
	}
}

// changed is closed when there may be news; nil: never.
func (n *conditionNews) changed() <-chan struct{} {
	if n == nil {
		return nil
	}
	return n.by.Changed()
}

// send sends the Services whose conditions changed. Those with a newer version than the watch stands at come with it.
// The events have the resourceVersion of the stored object, below that of events before them: a bookmark behind them
// keeps a client from going on there.
func (n *conditionNews) send(l *watchSession) error {
	if n == nil {
		return nil
	}
	sent := false
	keys, turn, known := n.by.Since(n.turn)
	n.turn = turn
	about := map[viewKey]struct{}{}
	for key := range n.pending {
		about[key] = struct{}{}
	}
	for _, key := range keys {
		namespace, name, _ := strings.Cut(key, "/")
		about[viewKey{namespace, name}] = struct{}{}
	}
	if !known {
		objects, _, err := l.server.store.List(object.KindService, l.request.namespace, 0)
		if err != nil {
			return nil // the next change finds them
		}
		for _, o := range objects {
			about[viewKey{o.GetMeta().Namespace, o.GetMeta().Name}] = struct{}{}
		}
	}
	for key := range about {
		o, _ := l.server.store.Get(object.Ref{Kind: object.KindService, Namespace: key.namespace, Name: key.name})
		svc, is := o.(*object.Service)
		if !is {
			delete(n.pending, key)
			continue
		}
		version, _ := strconv.ParseUint(svc.Metadata.ResourceVersion, 10, 64)
		if l.request.namespace != "" && l.request.namespace != key.namespace || !l.options.selects(svc) || version > l.after {
			continue
		}
		conditions, settled := n.by.Of(svc)
		shown := withConditions(svc, conditions)
		if _, waits := n.pending[key]; waits && !settled {
			continue
		}
		delete(n.pending, key)
		text, err := l.encode(shown)
		if err != nil {
			return err
		}
		if err := l.stream.frame(modified, text); err != nil {
			return err
		}
		sent = true
	}
	if sent && l.options.bookmarks {
		return l.bookmark(false)
	}
	return nil
}
