package rest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"svcctl.io/svcctl/store"
)

const (
	// shortestWatch is the least time that a watch is served whose client does not say how
	// long; each is served up to twice that, so that not all come back at the same time
	// (--min-request-timeout of the API server of Kubernetes).
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

// enter counts in what may hold much for long, a watch or what is asked of a view, and gives
// what counts it out again.
func (s *Server) enter(r *request) (leave func(), err error) {
	var places []chan struct{}
	if r.verb == "watch" {
		places = append(places, s.watches)
	}
	if _, computed := s.collectionOf(r.kind).(view); computed {
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

// begin sends the headers, and what there is already if that is asked for. An error is
// answered in the place of the watch.
func (l *watchSession) begin() error {
	o := l.options
	objects := l.server.collectionOf(l.request.kind)
	initial := l.wantsInitial()
	current := l.server.store.Revision()
	switch {
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
	for _, object := range there {
		if !o.selects(object) {
			continue
		}
		l.news.seen(object)
		if err := l.tellInitial(object); err != nil {
			return nil // the client is gone, which run will see
		}
	}
	if o.bookmarks && o.initial != nil {
		_ = l.bookmark(true)
	}
	return nil
}

// wantsInitial reports whether the watch begins with the present objects: by sendInitialEvents, or
// without a resourceVersion.
func (l *watchSession) wantsInitial() bool {
	if o := l.options; o.initial != nil {
		return *o.initial
	}
	return l.options.revision == 0
}

// resume makes ready to tell what happens after the revision of the watch, and sends the
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
		more, err := l.look()
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

// look sends the pending events, at most watchBatch of them, and reports whether there are more.
// An error ends the watch; the client gets it as an ERROR event if possible.
func (l *watchSession) look() (more bool, err error) {
	events, err := l.server.store.EventsAbout(l.after, watchBatch, l.follow.about)
	if err != nil {
		e := statusOf(err, l.request)
		if errors.Is(err, store.ErrExpired) {
			e = l.expired()
		}
		_ = l.stream.event(errored, e.status())
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

// change sends a change as the event that a client with a selector sees: ADDED, MODIFIED, DELETED,
// or none.
func (l *watchSession) change(c change) error {
	was, is := l.options.selects(c.old), l.options.selects(c.new)
	switch {
	case was && is:
		return l.tell(modified, c, false)
	case is:
		return l.tell(added, c, false)
	case was:
		return l.tell(deleted, c, true)
	}
	return nil
}
