package rest

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"svcctl.io/svcctl/api/kube/table"
	"svcctl.io/svcctl/store/object"
)

// The types of events of a watch.
const (
	added      = "ADDED"
	modified   = "MODIFIED"
	deleted    = "DELETED"
	bookmarked = "BOOKMARK"
	errored    = "ERROR"
)

// initialEventsEnd is the annotation of the bookmark behind what was there when a watch
// began.
const initialEventsEnd = "k8s.io/initial-events-end"

const (
	// streamBuffer bounds the bytes of a watch that are written at once.
	streamBuffer = 64 << 10
	// keptBuffer bounds the buffer that an idle watch keeps, in bytes.
	keptBuffer = 8 << 10
)

// stream is the body of a watch: one JSON document a line. A client that does not take what
// is sent to it in time is given up, so that nothing piles up here.
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
	// The server's deadlines are made for answers at once.
	_ = s.control.SetReadDeadline(time.Time{})
	s.w.Header().Set("Content-Type", typeJSON)
	s.w.Header().Set("Cache-Control", "no-cache, private")
	s.w.WriteHeader(http.StatusOK)
	_ = s.control.SetWriteDeadline(time.Now().Add(patience))
	s.err = s.control.Flush()
	_ = s.control.SetWriteDeadline(time.Time{})
}

// event writes an event about a document that is not encoded yet.
func (s *stream) event(kind string, document any) error {
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return s.frame(kind, text)
}

// frame writes an event about an encoded document.
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

// flush sends what was written. Afterwards the client may take its time until there is more:
// over HTTP/2 a deadline would end the stream even while there is nothing to write.
func (s *stream) flush() error {
	if s.err != nil || len(s.buffer) == 0 {
		return s.err
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(patience))
	if _, s.err = s.w.Write(s.buffer); s.err == nil {
		s.err = s.control.Flush()
	}
	_ = s.control.SetWriteDeadline(time.Time{})
	if s.buffer = s.buffer[:0]; cap(s.buffer) > keptBuffer {
		s.buffer = nil // most watches are quiet most of the time
	}
	return s.err
}

// tell writes an event about the new version of an object, or about the old one, which then
// has the revision of the change as its version.
func (l *watchSession) tell(kind string, c change, old bool) error {
	o := c.new
	if old {
		o = c.old
	}
	f := l.request.form
	if f.shape == tabular {
		if old {
			o = withVersion(o, c.revision)
		}
		return l.tellTable(kind, o)
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
	text, err := l.server.encoded.of(key, func() ([]byte, error) {
		if old {
			return l.encode(withVersion(o, c.revision))
		}
		return l.encode(o)
	})
	if err != nil {
		return err
	}
	return l.stream.frame(kind, text)
}

// tellInitial writes an event about an object that was there when the watch began. Such
// ones are not kept encoded: they are many, and leave no room for those of now.
func (l *watchSession) tellInitial(o object.Object) error {
	if l.request.form.shape == tabular {
		return l.tellTable(added, o)
	}
	text, err := l.encode(o)
	if err != nil {
		return err
	}
	return l.stream.frame(added, text)
}

// encode is an object in the form of the watch, which is not a Table.
func (l *watchSession) encode(o object.Object) ([]byte, error) {
	if l.request.form.shape == metadata {
		return json.Marshal(metadataOf(l.request.form, o))
	}
	return json.Marshal(o)
}

// tellTable writes an event about an object as a Table of one row. Only the first one has
// columns.
func (l *watchSession) tellTable(kind string, o object.Object) error {
	t := l.server.tableOf(l.request)
	if l.described {
		t.ColumnDefinitions = nil
	}
	l.described = true
	t.Metadata.ResourceVersion = o.GetMeta().ResourceVersion
	t.Rows = []table.Row{l.server.row(l.request.form, o)}
	return l.stream.event(kind, t)
}

// bookmark sends a BOOKMARK event: the revision up to which all events were sent. The first one
// marks the end of the initial list too.
func (l *watchSession) bookmark(initial bool) error {
	o := l.request.kind.New()
	meta := o.GetMeta()
	meta.ResourceVersion = strconv.FormatUint(l.after, 10)
	if initial {
		meta.Annotations = map[string]string{initialEventsEnd: "true"}
	}
	switch l.request.form.shape {
	case tabular:
		return l.tellTable(bookmarked, o)
	case metadata:
		return l.stream.event(bookmarked, metadataOf(l.request.form, o))
	}
	// Only what identifies the kind, and the metadata: empty specs would be noise.
	return l.stream.event(bookmarked, table.Metadata{TypeMeta: *o.GetTypeMeta(), Metadata: *meta})
}

// watchSession is one watch.
type watchSession struct {
	server  *Server
	request *request
	options *listOptions
	stream  *stream
	follow  follower
	// after is the revision up to which everything is told.
	after uint64
	// described is set once the columns of a Table were sent.
	described bool
	// news has the changes of conditions; nil: the watch shows none.
	news *conditionNews
}
