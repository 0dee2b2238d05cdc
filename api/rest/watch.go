package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"svcctl.io/svcctl/api/kube/table"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

const (
	// shortestWatch is the minimum duration of a watch without timeoutSeconds. Each watch lasts a random time up to twice that, so that clients do
	// not all reconnect at once (--min-request-timeout of the Kubernetes API server).
	shortestWatch = 30 * time.Minute
	// bookmarkEvery is the interval of bookmarks for quiet watches, so that clients can go on from
	// a recent revision.
	bookmarkEvery = time.Minute
	// watchBatch bounds the changes that are examined before their events are sent.
	watchBatch = 500
	// watchesRetry is the Retry-After, in seconds, for a watch when there are too many.
	watchesRetry = 5
)

// watch answers with the changes of a collection as they happen.
func (s *Server) watch(w http.ResponseWriter, r *request) error {
	o, err := listOptionsOf(r)
	if err != nil {
		return err
	}
	if r.http.ContentLength != 0 {
		return badRequest("a watch takes no body: leave it out")
	}
	leave, err := s.enter(r)
	if err != nil {
		return err
	}
	defer leave()
	timeout := o.timeout
	if timeout <= 0 {
		timeout = shortestWatch + rand.N(shortestWatch)
	}
	ctx, cancel := context.WithTimeout(r.http.Context(), timeout)
	defer cancel()

	l := &watchSession{server: s, request: r, options: &o, stream: newStream(w)}
	l.news = l.newsOf()
	if err := l.begin(); err != nil {
		return err
	}
	l.run(ctx)
	return nil
}

// enter counts a watch against the limit of watches, and a request for computed objects against that of views. The caller calls leave at the end of
// the request.
func (s *Server) enter(r *request) (leave func(), err error) {
	var places []chan struct{}
	if r.verb == "watch" {
		places = append(places, s.watches)
	}
	if _, computed := s.collectionOf(r.kind, r.form).(view); computed {
		places = append(places, s.views)
	}
	taken := 0
	leave = func() {
		for _, place := range places[:taken] {
			<-place
		}
	}
	for _, place := range places {
		select {
		case place <- struct{}{}:
			taken++
		default:
			leave()
			return nil, tooManyRequests(fmt.Sprintf("%d such requests are served already: try again later, or end some", cap(place)), watchesRetry)
		}
	}
	return leave, nil
}

// begin sends the headers and, if the client wants them, the existing objects. If it returns an error, nothing was sent.
func (l *watchSession) begin() error {
	o := l.options
	objects := l.server.collectionOf(l.request.kind, l.request.form)
	initial := l.wantsInitial()
	switch current := l.server.store.Revision(); {
	case initial && o.revision > current:
		return fromTheFuture(o.revision, current)
	case !initial && o.revision > 0:
		l.after = o.revision
		l.news.catchUp(l)
		return l.resume(objects)
	case !initial:
		l.after = current
		l.news.catchUp(l)
		return l.resume(objects)
	}
	there, revision, err := objects.list(l.request.namespace, 0)
	if err != nil {
		return err
	}
	l.after = revision
	if err := l.resume(objects); err != nil {
		return err
	}
	for object := range o.selected(there, viewOf(objects)) {
		l.news.seen(object)
		if err := l.stream.event(added, l.document(object)); err != nil { // not cached: they are many, and would evict recent changes
			return nil // the client is gone, which run will see
		}
	}
	if o.bookmarks && o.initial != nil {
		_ = l.bookmark(true)
	}
	return nil
}

// wantsInitial reports whether the watch begins with the existing objects: as sendInitialEvents requests, or by default if no resourceVersion is
// given.
func (l *watchSession) wantsInitial() bool {
	if o := l.options; o.initial != nil {
		return *o.initial
	}
	return l.options.revision == 0
}

// resume prepares to send the changes after the revision of the watch, and sends the
// headers: clients wait for them.
func (l *watchSession) resume(objects collection) (err error) {
	if _, err = l.server.store.Events(l.after, 1); err == nil {
		l.follow, err = objects.follow(l.request.namespace, l.after)
	}
	if errors.Is(err, store.ErrExpired) {
		return l.expired()
	}
	if err != nil {
		return err
	}
	l.stream.begin()
	return nil
}

func (l *watchSession) expired() *statusError {
	if now := l.server.store.Revision(); l.after > now {
		return expired(fmt.Sprintf("too large resource version: %d, and the newest is %d: list again", l.after, now))
	}
	return expired(fmt.Sprintf("too old resource version: %d (%d): list again", l.after, l.server.store.Revision()))
}

// run sends events until the watch ends.
func (l *watchSession) run(ctx context.Context) {
	bookmarks := time.NewTicker(bookmarkEvery)
	defer bookmarks.Stop()
	for l.stream.flush() == nil {
		published, news := l.server.store.Published(), l.news.changed()
		more, err := l.sendPending()
		if err != nil {
			return
		}
		if more {
			if ctx.Err() != nil {
				return
			}
			continue
		}
		if l.news.send(l) != nil || l.stream.flush() != nil {
			return
		}
		select {
		case <-published:
		case <-news:
		case <-bookmarks.C:
			if l.options.bookmarks {
				_ = l.bookmark(false)
			}
		case <-ctx.Done():
			// The client is still connected.
			if l.options.bookmarks && errors.Is(ctx.Err(), context.DeadlineExceeded) && l.request.http.Context().Err() == nil {
				_ = l.bookmark(false)
			}
			_ = l.stream.flush()
			return
		}
	}
}

// sendPending sends the pending events, at most watchBatch of them, and reports whether there are more.
// An error ends the watch; the client gets it as an ERROR event if possible.
func (l *watchSession) sendPending() (more bool, err error) {
	events, err := l.server.store.EventsAbout(l.after, watchBatch, l.follow.about)
	if err != nil {
		e := statusOf(err, l.request)
		if errors.Is(err, store.ErrExpired) {
			e = l.expired()
		}
		_ = l.stream.event(errored, e)
		_ = l.stream.flush()
		return false, err
	}
	for _, event := range events {
		if l.follow.about(event.Ref) {
			for _, c := range l.follow.changes(event) {
				if err := l.change(c); err != nil {
					return false, err
				}
			}
		}
		l.after = event.Revision
	}
	return len(events) == watchBatch, nil
}

// change sends a change as an event: ADDED, MODIFIED or DELETED, depending on whether the client's selector matched before and matches now. It sends
// nothing if neither.
func (l *watchSession) change(c change) error {
	switch was, is := l.options.selects(c.old), l.options.selects(c.new); {
	case was && is:
		return l.send(modified, c, false)
	case is:
		return l.send(added, c, false)
	case was:
		return l.send(deleted, c, true)
	}
	return nil
}

// The types of events of a watch.
const (
	added      = "ADDED"
	modified   = "MODIFIED"
	deleted    = "DELETED"
	bookmarked = "BOOKMARK"
	errored    = "ERROR"
)

// initialEventsEnd is the annotation of the bookmark that ends the initial events of a watch.
const initialEventsEnd = "k8s.io/initial-events-end"

const (
	// streamBuffer bounds the bytes of a watch that are written at once.
	streamBuffer = 64 << 10
	// keptBuffer bounds the buffer that an idle watch keeps, in bytes.
	keptBuffer = 8 << 10
)

// stream is the body of a watch: one JSON document a line. The server bounds each write, so a client that does not read is
// disconnected and nothing piles up here.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buffer  []byte
	err     error
}

func newStream(w http.ResponseWriter) *stream {
	return &stream{w: w, control: http.NewResponseController(w)}
}

// begin sends the headers.
func (s *stream) begin() {
	s.w.Header().Set("Content-Type", typeJSON)
	s.w.Header().Set("Cache-Control", "no-cache, private")
	s.w.WriteHeader(http.StatusOK)
	s.err = s.control.Flush()
}

// event writes an event about a document that is not encoded yet.
func (s *stream) event(kind string, document any) error {
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return s.frame(kind, text)
}

// frame adds a watch event of a type (kind, such as ADDED) to the buffer, with an object that is already encoded as JSON. It sends the buffer once it
// holds streamBuffer bytes.
func (s *stream) frame(kind string, document []byte) error {
	if s.err != nil {
		return s.err
	}
	s.buffer = append(s.buffer, `{"type":"`...)
	s.buffer = append(s.buffer, kind...)
	s.buffer = append(s.buffer, `","object":`...)
	s.buffer = append(s.buffer, document...)
	s.buffer = append(s.buffer, "}\n"...)
	if len(s.buffer) < streamBuffer {
		return nil
	}
	return s.flush()
}

// flush sends the buffer.
func (s *stream) flush() error {
	if s.err != nil || len(s.buffer) == 0 {
		return s.err
	}
	if _, s.err = s.w.Write(s.buffer); s.err == nil {
		s.err = s.control.Flush()
	}
	if s.buffer = s.buffer[:0]; cap(s.buffer) > keptBuffer {
		s.buffer = nil // most watches are quiet most of the time
	}
	return s.err
}

// send writes an event about the new version of an object. If old is set, as for a deletion, the event has the old version with the
// revision after which the client goes on as its resourceVersion.
func (l *watchSession) send(kind string, c change, old bool) error {
	o := c.new
	if old {
		o = c.old
	}
	shown := func() any {
		if old {
			return l.document(withVersion(o, c.resume))
		}
		return l.document(o)
	}
	f := l.request.form
	if f.shape == tabular {
		return l.stream.event(kind, shown())
	}
	meta := o.GetMeta()
	key := encodingKey{
		revision: c.revision, apiVersion: o.GetTypeMeta().APIVersion, kind: o.GetTypeMeta().Kind,
		namespace: meta.Namespace, name: meta.Name, old: old, shape: f.shape, metaVersion: f.metaVersion,
	}
	if svc, is := o.(*object.Service); is && l.news != nil {
		for _, c := range svc.Status.Conditions {
			key.conditions += c.Type + c.Status + c.Reason + c.Message + "\n"
		}
		l.news.seen(o)
	}
	text, err := l.server.encoded.of(key, func() ([]byte, error) { return json.Marshal(shown()) })
	if err != nil {
		return err
	}
	return l.stream.frame(kind, text)
}

// document returns an object in the form of the watch. Only the first Table has columns.
func (l *watchSession) document(o object.Object) any {
	document := l.server.document(l.request, o)
	if t, is := document.(*table.Table); is {
		if l.described {
			t.ColumnDefinitions = nil
		}
		l.described = true
	}
	return document
}

// bookmark sends a BOOKMARK event with the revision up to which all events were sent. If initial is set, it also marks the end of the initial events.
func (l *watchSession) bookmark(initial bool) error {
	o := l.request.kind.New()
	meta := o.GetMeta()
	meta.ResourceVersion = strconv.FormatUint(l.after, 10)
	if initial {
		meta.Annotations = map[string]string{initialEventsEnd: "true"}
	}
	if l.request.form.shape != whole {
		return l.stream.event(bookmarked, l.document(o))
	}
	// Only what identifies the kind, and the metadata: empty specs would be noise.
	return l.stream.event(bookmarked, table.Metadata{TypeMeta: *o.GetTypeMeta(), Metadata: *meta})
}

// watchSession is the state of one watch.
type watchSession struct {
	server  *Server
	request *request
	options *listOptions
	stream  *stream
	follow  follower
	// after is the revision up to which everything was sent.
	after uint64
	// described is set once the columns of a Table were sent.
	described bool
	// news sends changes of conditions; nil if the watch does not show them.
	news *conditionNews
}
