package rest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"svcctl.io/svcctl/api/kube/table"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/pending"
)

// respond answers with one object, in the form that the client asked for.
func (s *Server) respond(w http.ResponseWriter, r *request, code int, o object.Object) error {
	if r.form.yaml {
		text, err := manifest.EncodeYAML(o)
		if err != nil {
			return err
		}
		send(w, r.http, code, typeYAML, text)
		return nil
	}
	return respondJSON(w, r.http, code, r.form.pretty, s.document(r, o))
}

// document returns an object in the form that the client asked for: as a Table of one row, its metadata alone, or whole.
func (s *Server) document(r *request, o object.Object) any {
	switch version := r.form.metaAPIVersion(); r.form.shape {
	case tabular:
		t := table.New(r.kind, version, table.ListMeta{ResourceVersion: o.GetMeta().ResourceVersion})
		t.Rows = []table.Row{table.RowOf(o, r.form.include, version, s.now())}
		return t
	case metadata:
		return table.MetadataOf(o, version)
	}
	return o
}

// respondJSON answers with a JSON document.
func respondJSON(w http.ResponseWriter, r *http.Request, code int, pretty bool, document any) error {
	text, err := encode(document, pretty)
	if err != nil {
		return err
	}
	send(w, r, code, typeJSON, text)
	return nil
}

// encode returns a document in JSON, with a newline at its end.
func encode(document any, pretty bool) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	if pretty {
		e.SetIndent("", indentation)
	}
	if err := e.Encode(document); err != nil {
		return nil, fmt.Errorf("encode %T: %w", document, err)
	}
	return b.Bytes(), nil
}

// send answers with an encoded text. Unless Cache-Control is already set, it forbids caching.
func send(w http.ResponseWriter, r *http.Request, code int, contentType string, text []byte) {
	w.Header().Set("Content-Type", contentType)
	if w.Header().Get("Cache-Control") == "" {
		w.Header().Set("Cache-Control", "no-cache, private")
	}
	a := newAnswer(w, r, code)
	_, _ = a.Write(text)
	a.Close()
}

// fail answers with an error. It logs internal errors, except for a full range of addresses or ports (alloc.ErrFull).
func (s *Server) fail(w http.ResponseWriter, r *request, err error) {
	e := statusOf(err, r)
	if e.Code == http.StatusInternalServerError && !errors.Is(err, alloc.ErrFull) {
		s.log.Error("request failed", "method", r.http.Method, "path", r.http.URL.Path, "user", r.user.Name, "err", err)
	}
	if e.Details != nil && e.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.Details.RetryAfterSeconds))
	}
	if err := respondJSON(w, r.http, e.Code, r.form.pretty, e); err != nil {
		s.log.Error("answer failed", "path", r.http.URL.Path, "err", err)
	}
}

// indentation of JSON for people.
const indentation = "  "

const (
	// gzipFrom is the length from which an answer is compressed for clients that accept it
	// (defaultGzipThresholdBytes of the API server of Kubernetes). It also bounds the bytes of an
	// answer that are held in memory.
	gzipFrom = 128 << 10
)

var (
	buffers = sync.Pool{New: func() any { return new([gzipFrom]byte) }}
	// zippers has gzip writers that favor speed over size: clients are near.
	zippers = sync.Pool{New: func() any {
		z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed)
		return z
	}}
)

// answer is the body of an answer of any length. It holds gzipFrom bytes at most: shorter answers are sent with their length, longer ones
// in chunks, compressed if the client accepts that. The server bounds each write, which disconnects a client that is too slow.
type answer struct {
	w      http.ResponseWriter
	code   int
	zip    bool // compress it if it is longer than gzipFrom
	buffer *[gzipFrom]byte
	used   int
	begun  bool
	zipper *gzip.Writer
	err    error
}

// newAnswer begins an answer whose headers are set, except for those about its length. Its caller closes it.
func newAnswer(w http.ResponseWriter, r *http.Request, code int) *answer {
	return &answer{w: w, code: code, zip: asksForGzip(r.Header.Values("Accept-Encoding")), buffer: buffers.Get().(*[gzipFrom]byte)}
}

// Write implements io.Writer.
func (a *answer) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && a.err == nil; {
		if a.used == len(a.buffer) {
			a.begin()
			a.flush()
		}
		n := copy(a.buffer[a.used:], rest)
		a.used += n
		rest = rest[n:]
	}
	return len(p), a.err
}

// begin sends the headers of an answer that is too long to be held.
func (a *answer) begin() {
	if a.begun {
		return
	}
	a.begun = true
	if a.zip {
		a.w.Header().Set("Content-Encoding", "gzip")
		a.w.Header().Add("Vary", "Accept-Encoding")
		a.zipper = zippers.Get().(*gzip.Writer)
		a.zipper.Reset(a.w)
	}
	a.w.WriteHeader(a.code)
}

// flush writes the buffer.
func (a *answer) flush() {
	if a.zipper != nil {
		_, a.err = a.zipper.Write(a.buffer[:a.used])
	} else {
		_, a.err = a.w.Write(a.buffer[:a.used])
	}
	a.used = 0
}

// Close ends the answer. A client that hung up is no error.
func (a *answer) Close() {
	if !a.begun {
		a.begun = true
		a.w.Header().Set("Content-Length", strconv.Itoa(a.used))
		a.w.WriteHeader(a.code)
	}
	if a.err == nil {
		a.flush()
	}
	if a.err == nil && a.zipper != nil {
		_ = a.zipper.Close()
	}
	a.drop()
}

// drop discards the buffer.
func (a *answer) drop() {
	if a.zipper != nil {
		a.zipper.Reset(nil)
		zippers.Put(a.zipper)
		a.zipper = nil
	}
	buffers.Put(a.buffer)
	a.buffer = nil
}

// busyRetry is the Retry-After in seconds of requests that fail for a temporary reason.
const busyRetry = 1

// awayRetry is the Retry-After, in seconds, of requests that fail because other machines do not
// answer.
const awayRetry = 5

// isAway reports whether a request failed because other machines do not answer.
func isAway(err error) bool {
	_, is := errors.AsType[*engine.AwayError](err)
	return is
}

// statusOf returns the answer to an error of a request. Internal errors become a 500.
func statusOf(err error, r *request) *statusError {
	var own *statusError
	var owned *store.OwnedError
	var other *store.PreconditionError
	var inRollout *pending.StagedError
	var onTrial *pending.TimedError
	var invalidities object.Errors
	var invalidity object.Error
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &invalidities):
		return invalidObject(r.kind, r.name, invalidities)
	case errors.As(err, &invalidity):
		return invalidObject(r.kind, r.name, object.Errors{invalidity})
	case errors.Is(err, store.ErrExists):
		return alreadyExists(r.kind, r.name)
	case errors.Is(err, store.ErrNotFound):
		return notFound(r.kind, r.name)
	case errors.As(err, &owned):
		return conflict(r.kind, r.name, owned.Error())
	case errors.As(err, &other):
		return conflict(r.kind, r.name, other.Error())
	case errors.Is(err, store.ErrStale):
		return conflict(r.kind, r.name, store.ErrStale.Error())
	case errors.Is(err, pending.ErrTimedOver):
		return conflict(r.kind, r.name, pending.ErrTimedOver.Error())
	case errors.Is(err, pending.ErrStagedOver), errors.As(err, &inRollout), errors.As(err, &onTrial):
		return conflict(r.kind, r.name, err.Error())
	case errors.Is(err, store.ErrExpired):
		return expired("The resourceVersion for the provided watch is too old.")
	case errors.As(err, &tooLong):
		return tooLarge(fmt.Sprintf("limit is %d", tooLong.Limit))
	case errors.Is(err, alloc.ErrFull):
		return internalError(err)
	case errors.Is(err, engine.ErrUnsettled):
		return refusal(wire.ReasonTimeout, nil, "%v", engine.ErrUnsettled)
	case isAway(err):
		return unavailable("nothing was changed: "+err.Error(), awayRetry)
	case errors.Is(err, engine.ErrNoSpace):
		return unavailable("nothing was changed: "+err.Error(), busyRetry)
	}
	return internalError(err)
}

// maxTries bounds the attempts of a change without resourceVersion that conflicts with concurrent
// ones (MaxRetryWhenPatchConflicts of the API server of Kubernetes).
const maxTries = 5

// Limits on Warning headers, as in the Kubernetes API server. If all warnings of a response together exceed maxWarnings characters, each is cut to
// maxWarning characters, and the warnings beyond maxWarnings are left out.
const (
	maxWarnings = 4 << 10
	maxWarning  = 256
)

// send puts the warnings into the headers of an answer (RFC 7234 section 5.5): code 299,
// no agent, and the text.
func (w warnings) send(to http.ResponseWriter) {
	total := 0
	for _, text := range w {
		total += utf8.RuneCountInString(text)
	}
	cut := total > maxWarnings
	sent := 0
	for _, text := range w {
		if cut && sent >= maxWarnings {
			return
		}
		if runes := []rune(text); cut && len(runes) > maxWarning {
			text = string(runes[:maxWarning])
		}
		sent += utf8.RuneCountInString(text)
		to.Header().Add("Warning", "299 - "+quoted(text))
	}
}

// quoted returns a text as a quoted string on one line, for a header.
func quoted(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, char := range strings.ToValidUTF8(text, "?") {
		switch {
		case char == '"' || char == '\\':
			b.WriteByte('\\')
			b.WriteRune(char)
		case char == '\n' || char == '\t':
			b.WriteByte(' ')
		case char < ' ' || char == 0x7f:
		default:
			b.WriteRune(char)
		}
	}
	b.WriteByte('"')
	return b.String()
}
