package control

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

const (
	// eventComponent is the reporting component of the Events, eventUser the user that the journal names for writing them.
	eventComponent = "svcctl"
	eventUser      = "system:svcctl"
	// eventGather is the time for which new problems are collected before their Events are written together.
	eventGather = 500 * time.Millisecond
	// eventRefresh is the interval at which the Event of a lasting problem is written again, since Events are removed an hour after their last
	// write.
	eventRefresh = 30 * time.Minute
	// eventLook is the interval at which Events are checked for a refresh.
	eventLook = time.Minute
	// maxHappenings is the largest number of problems that have Events. eventBatch is the largest number of Events in one commit, eventsAtOnce the
	// largest number written per eventLook.
	maxHappenings = 1000
	eventBatch    = 100
	eventsAtOnce  = 500
	// objectEvents is the number of Events about one object that may be written at once; objectEventEvery is the time after which one more
	// may.
	objectEvents     = 10
	objectEventEvery = time.Minute
	// maxEventMessage is Kubernetes' limit for the message of an Event, in bytes.
	maxEventMessage = 1024
)

// happening is the content of an Event about an object.
type happening struct {
	object          object.Ref
	reason, message string
	place           string // file, line and column; "" when there is no file
	// normal selects an Event of type Normal, which is recorded once.
	normal bool
}

// Recorder writes Events about problems, and about load balancer IPs that were assigned, so that clients see them with an object. It runs
// in a task of its own; the reconcile loop never waits for it.
type Recorder struct {
	store *store.Store
	host  string
	log   *slog.Logger
	now   func() time.Time
	wake  chan struct{}
	quiet func() bool
	// assigns is set when there are pools to assign load balancer IPs from.
	assigns bool

	mu     sync.Mutex
	active map[happening]time.Time // when the Event of each lasting problem was last written; zero: not yet
	once   []happening             // Events that are written only once and are still to be written

	// Only Flush uses the fields below.
	seen    uint64             // the revision up to which assigned addresses have Events
	written map[happening]bool // the Events that this process has written
	spent   map[object.Ref]spending
}

// spending counts the Events of an object against its rate limit.
type spending struct {
	events float64
	at     time.Time
}

// RecorderConfig is the configuration of a Recorder.
type RecorderConfig struct {
	// Host is the source that Events name.
	Host string
	// Assigns is set when the store assigns load balancer IPs.
	Assigns bool
	// Quiet reports whether another box writes the Events, nil if none does.
	Quiet func() bool
	// Clock returns the time of Events; nil: time.Now.
	Clock func() time.Time
	Log   *slog.Logger
}

func NewRecorder(objects *store.Store, cfg RecorderConfig) *Recorder {
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	return &Recorder{
		store: objects, host: cfg.Host, quiet: cfg.Quiet, assigns: cfg.Assigns, log: cfg.Log, now: cfg.Clock, wake: make(chan struct{}, 1), seen: objects.Revision(),
		active: map[happening]time.Time{}, written: map[happening]bool{}, spent: map[object.Ref]spending{},
	}
}

// happeningOf returns the content of the Event for a problem; false when the problem names no object, or is about endpoints that are down,
// which have Events of their own.
func happeningOf(p manifest.Problem) (happening, bool) {
	if p.Object == (object.Ref{}) || p.Reason == resolve.ReasonEndpointDown {
		return happening{}, false // each endpoint that goes down has an Event of its own
	}
	h := happening{object: p.Object, reason: p.Reason, message: wire.Problem{Field: p.Field, Message: p.Message}.String()}
	if p.File != "" {
		h.place = wire.Problem{File: p.File, Line: p.Line, Column: p.Column}.String()
	}
	return h, true
}

// Record queues one Event about an object, of type Normal if normal is set, otherwise Warning. Above the limits in total, or for one object, Events
// are dropped.
func (r *Recorder) Record(about object.Ref, reason, message string, normal bool) {
	r.mu.Lock()
	if len(r.once) < maxHappenings {
		r.once = append(r.once, happening{object: about, reason: reason, message: message, normal: normal})
	}
	r.mu.Unlock()
	task.Wake(r.wake)
}

// Report records the problems that ended and those that began since the last call.
func (r *Recorder) Report(over, new []manifest.Problem) {
	if len(over)+len(new) == 0 && !r.assigns {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range over {
		if h, ok := happeningOf(p); ok {
			delete(r.active, h)
		}
	}
	for _, p := range new {
		if h, ok := happeningOf(p); ok && len(r.active) < maxHappenings {
			r.active[h] = time.Time{}
		}
	}
	task.Wake(r.wake)
}

// Run writes Events until ctx is done.
func (r *Recorder) Run(ctx context.Context) error {
	look := time.NewTicker(eventLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		case <-r.wake:
			if !task.Sleep(ctx, eventGather) {
				return nil
			}
		}
		if r.quiet != nil && r.quiet() {
			continue
		}
		if err := r.Flush(); err != nil {
			r.log.Warn("events cannot be written", "err", err)
		}
	}
}

// Flush writes the Events that are due now.
func (r *Recorder) Flush() error {
	assigned, upTo, err := r.assigned()
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(append(r.due(), assigned...), eventBatch) {
		if err := r.write(batch); err != nil {
			return err
		}
	}
	r.seen = upTo
	return nil
}

// due returns the content of the Events to write now, within the limits. It empties the queue of single Events; those above the limits are
// dropped.
func (r *Recorder) due() []happening {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []happening
	for h, at := range r.active {
		if len(due) < eventsAtOnce && now.Sub(at) >= eventRefresh && r.spend(h.object, now) {
			due = append(due, h)
		}
	}
	if len(r.written) > 4*maxHappenings {
		clear(r.written)
	}
	for _, h := range r.once {
		if len(due) < eventsAtOnce && r.spend(h.object, now) {
			due = append(due, h)
		}
	}
	r.once = nil
	maps.DeleteFunc(r.spent, func(_ object.Ref, s spending) bool { return now.Sub(s.at) > objectEvents*objectEventEvery })
	return due
}

// spend counts an Event against the rate limit of an object. It returns false when the limit is reached.
func (r *Recorder) spend(ref object.Ref, now time.Time) bool {
	s := r.spent[ref]
	if !s.at.IsZero() {
		s.events = max(0, s.events-now.Sub(s.at).Seconds()/objectEventEvery.Seconds())
	}
	if s.events+1 > objectEvents {
		return false
	}
	r.spent[ref] = spending{s.events + 1, now}
	return true
}

// write stores Events in one commit.
func (r *Recorder) write(batch []happening) error {
	now := r.now().UTC().Truncate(time.Second)
	var writes []store.Write
	for _, h := range batch {
		if e := r.event(h, now); e != nil {
			by := store.Caller{User: eventUser, Manager: eventComponent, Verb: "create"}
			if e.Count > 1 {
				by.Verb = "update"
			}
			writes = append(writes, store.Write{Ref: object.RefOf(e), Object: e, By: by})
		}
	}
	if len(writes) > 0 {
		results, err := r.store.Write(writes...)
		if err != nil {
			return err
		}
		for i, result := range results {
			if result.Err != nil {
				r.log.Warn("an event cannot be written", "event", writes[i].Ref.String(), "err", result.Err)
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range batch {
		r.written[h] = true
		if at, is := r.active[h]; is && at.IsZero() || is && now.Sub(at) >= eventRefresh {
			r.active[h] = now
		}
	}
	return nil
}

// event returns the Event to store for a happening: the stored one with an increased count, or a new one. It is nil when nothing is to be
// written: an earlier process wrote it, or the namespace does not exist.
func (r *Recorder) event(h happening, now time.Time) *object.Event {
	involved := object.ObjectReference{Kind: h.object.Kind, Namespace: h.object.Namespace, Name: h.object.Name, APIVersion: object.APIVersionCore}
	if h.object.Kind == object.KindEndpointSlice {
		involved.APIVersion = object.APIVersionDiscovery
	}
	if o, _ := r.store.Get(h.object); o != nil {
		involved.UID, involved.ResourceVersion = o.GetMeta().UID, o.GetMeta().ResourceVersion
	} else if ns, _ := r.store.Get(object.Ref{Kind: object.KindNamespace, Name: h.object.Namespace}); ns == nil {
		return nil
	}
	message := h.message
	if h.place != "" {
		message += " (" + h.place + ")"
	}
	if len(message) > maxEventMessage {
		message = strings.ToValidUTF8(message[:maxEventMessage-3], "") + "..."
	}
	name := eventName(h, involved.UID)
	stored, _ := r.store.Get(object.Ref{Kind: object.KindEvent, Namespace: h.object.Namespace, Name: name})
	if before, ok := stored.(*object.Event); ok {
		if !h.normal && !r.written[h] && before.Message == message && before.LastTimestamp != nil && now.Sub(*before.LastTimestamp) < eventRefresh {
			return nil
		}
		e := object.DeepCopy(before)
		e.Count, e.LastTimestamp, e.Message, e.InvolvedObject = e.Count+1, &now, message, involved
		return e
	}
	kind := object.EventWarning
	if h.normal {
		kind = object.EventNormal
	}
	return &object.Event{
		TypeMeta:       object.TypeMeta{Kind: object.KindEvent, APIVersion: object.APIVersionCore},
		Metadata:       object.ObjectMeta{Namespace: h.object.Namespace, Name: name},
		InvolvedObject: involved, Reason: h.reason, Message: message, Type: kind,
		Source:         object.EventSource{Component: eventComponent, Host: r.host},
		FirstTimestamp: &now, LastTimestamp: &now, Count: 1,
		EventTime:          &object.MicroTime{Time: now}, // events.k8s.io/v1 requires it
		ReportingComponent: eventComponent, ReportingInstance: r.host,
	}
}

// eventName returns the name of the Event for a message about an object, with a hash as in Kubernetes; the hash alone where an Event cannot have
// the name of the object, as of a ClusterRole with a colon. Equal messages get equal names, regardless of the position of the object in a file.
func eventName(h happening, uid string) string {
	digest := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%s\n%s", h.object, uid, h.reason, h.message))
	suffix := fmt.Sprintf(".%x", digest[:8])
	if name := h.object.Name + suffix; len(object.NameProblems(name)) == 0 {
		return name
	}
	return suffix[1:]
}

const (
	// reasonAssigned is the reason of Events about assigned load balancer IPs. Other load balancers use it too.
	reasonAssigned = "IPAllocated"
	// assignedAtOnce is the largest number of assigned load balancer IPs that get an Event at a time. If there are more, for example at a first
	// start, the others get none. The status of the Services shows all of them.
	assignedAtOnce = 100
)

// assigned returns Events for the load balancer IPs that were allocated after the revision r.seen, up to the revision upTo.
func (r *Recorder) assigned() (reported []happening, upTo uint64, err error) {
	if !r.assigns {
		return nil, 0, nil
	}
	upTo = r.store.Revision()
	events, err := r.store.EventsAbout(r.seen, 0, func(ref object.Ref) bool { return ref.Kind == object.KindService })
	if err != nil && !errors.Is(err, store.ErrExpired) {
		return nil, 0, fmt.Errorf("look for addresses that were given: %w", err)
	}
	for _, e := range events {
		upTo = max(upTo, e.Revision)
		svc, _ := e.New.(*object.Service)
		if svc == nil || svc.Spec.LoadBalancerClass != nil && *svc.Spec.LoadBalancerClass != store.LoadBalancerClass {
			continue // its status is another load balancer's
		}
		has := svc.IngressIPs()
		before, _ := e.Old.(*object.Service)
		if len(has) == 0 || before != nil && slices.Equal(has, before.IngressIPs()) || !r.spend(e.Ref, r.now()) {
			continue
		}
		if reported = append(reported, happening{object: e.Ref, reason: reasonAssigned, message: fmt.Sprintf("Assigned IP %q", has), normal: true}); len(reported) == assignedAtOnce {
			break
		}
	}
	return reported, upTo, nil
}
