package rest

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
	"svcctl.io/svcctl/store/schema"
)

const (
	// batchLimit bounds the body of a batch in bytes; about 60,000 Services fit.
	batchLimit = 64 << 20
	// commitBytes bounds the objects in one commit of a batch in bytes, as commitObjects bounds their number.
	commitBytes = 4 << 20
)

// typeLines is the media type of JSON values one a line.
const typeLines = "application/x-ndjson"

// batch answers POST /svcctl/v1/apply, the server-side apply of all objects in the body. The body is a stream of JSON values, arrays, Lists or YAML
// documents. The response has a line of JSON (wire.Applied) for each object, in order, and is sent while the body is still arriving. If an object is
// refused, the others are still applied. If the stream becomes unreadable, the response ends with a line with the error. Objects without a namespace
// get the one in the query, or default.
func (s *Server) batch(w http.ResponseWriter, r *request) error {
	if r.http.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return methodNotAllowed(r.http.Method)
	}
	if r.user.Role < auth.Endpoints {
		return refusal(wire.ReasonForbidden, nil, "forbidden: User %q cannot apply objects%s", r.user.Name, askAnAdmin)
	}
	mediaType, err := mediaTypeOf(r.http, []string{typeLines, typeJSON, typeYAML})
	if err != nil {
		return err
	}
	o, err := optionsOf(r, "PatchOptions")
	if err != nil {
		return err
	}
	if err := o.checkPatch(typeApplyPatch); err != nil {
		return err
	}
	select {
	case s.guards.batches <- struct{}{}:
		defer func() { <-s.guards.batches }()
	case <-r.http.Context().Done():
		return unavailable("the request ended before its turn", busyRetry)
	}
	// Without this, HTTP/1 drops the rest of the body with the first line of the answer.
	_ = http.NewResponseController(w).EnableFullDuplex()
	w.Header().Set("Content-Type", typeLines)
	w.Header().Set("Cache-Control", "no-cache, private")
	a := newAnswer(w, r.http, http.StatusOK)
	defer a.Close()
	b := &batch{server: s, request: r, options: o, out: json.NewEncoder(a), refs: map[object.Ref]bool{}, spaces: map[string]bool{}}
	body := &patientReader{http.MaxBytesReader(w, r.http.Body, batchLimit), http.NewResponseController(w)}
	for doc, err := range documents(body, mediaType) {
		if err == nil && a.err == nil {
			err = b.add(doc)
		}
		if err != nil || a.err != nil {
			return b.end(err)
		}
	}
	return b.end(nil)
}

// patience bounds the time of each read of a batch.
const patience = 30 * time.Second

// patientReader reads a body with a time limit for each read, and none for the whole.
type patientReader struct {
	body    io.Reader
	control *http.ResponseController
}

func (p *patientReader) Read(b []byte) (int, error) {
	_ = p.control.SetReadDeadline(time.Now().Add(patience))
	return p.body.Read(b)
}

// batch collects objects until their number or size is sufficient for a commit (commitObjects, commitBytes).
type batch struct {
	server  *Server
	request *request
	options *options
	out     *json.Encoder

	items  []*item
	refs   map[object.Ref]bool // references of the objects in items
	length int                 // size of the objects in items, in bytes
	spaces map[string]bool     // the namespaces that this dry run would have created so far
}

// item is one object of a batch.
type item struct {
	writing *writing
	plan    plan
	result  applied
	err     error
}

// applied is wire.Applied whose object is not encoded yet.
type applied struct {
	Result   string        `json:"result"`
	Object   object.Object `json:"object,omitempty"`
	Status   *statusError  `json:"status,omitempty"`
	Warnings []string      `json:"warnings,omitempty"`
}

// add adds one document to the batch, and commits the batch if it is full. It returns an error only if the response cannot be written.
func (b *batch) add(d document) error {
	it := &item{}
	it.writing, it.err = b.writing(d)
	var ref object.Ref
	if it.err == nil {
		ref = it.writing.request.ref()
	}
	if b.refs[ref] {
		// It is applied to what the earlier one of the same name makes.
		if err := b.flush(); err != nil {
			return err
		}
	}
	b.items = append(b.items, it)
	b.length += d.length
	b.refs[ref] = it.err == nil
	full := len(b.items) >= commitObjects || b.length >= commitBytes
	// What comes after a Namespace may be in it.
	isSpace := ref.Kind == object.KindNamespace
	if b.options.dryRun {
		// Dry runs see only objects in the same commit.
		if isSpace {
			b.spaces[ref.Name] = true
		}
		return nil
	}
	if full || isSpace {
		return b.flush()
	}
	return nil
}

// writing returns the write that one document asks for.
func (b *batch) writing(d document) (*writing, error) {
	if d.err != nil {
		return nil, d.err
	}
	content, ok := d.content.(map[string]any)
	if !ok {
		return nil, badRequest("error decoding patch: line %d: it is no object with fields", d.line)
	}
	apiVersion, _ := content["apiVersion"].(string)
	named, _ := content["kind"].(string)
	k, ok := kind.ByName(apiVersion, named)
	switch {
	case !ok:
		return nil, refusal(wire.ReasonNotFound, nil, "no matches for kind %q in version %q", named, apiVersion)
	case !k.Stored():
		return nil, notSupported(k, "patch")
	}
	r := *b.request
	r.kind, r.verb, r.name = k, "patch", textIn(content, "name")
	if err := mayWriteKind(&r); err != nil {
		return nil, err
	}
	if !may(r.user.Role, r.verb, k) {
		return nil, forbidden(&r)
	}
	if r.name == "" {
		return nil, badRequest("%s: metadata.name: Required value: what is applied needs a name", k.Name)
	}
	if err := checkSegment(r.name); err != nil {
		return nil, err
	}
	if k.Namespaced {
		r.namespace = cmp.Or(textIn(content, "namespace"), b.request.query.Get("namespace"), "default")
	}
	o := *b.options
	o.warnings = nil
	if b.spaces[r.namespace] {
		there, _ := b.server.store.Get(namespaceRef(r.namespace))
		o.createsNamespace = there == nil
	}
	return b.server.applying(&r, &o, content, d.fieldWarnings)
}

// flush commits the collected items, and writes their results.
func (b *batch) flush() error {
	if err := b.commit(); err != nil {
		for _, it := range b.items {
			if it.err == nil && it.plan.unchanged == nil {
				it.err = err
			}
		}
	}
	for _, it := range b.items {
		if stale := errors.Is(it.err, store.ErrStale) || errors.Is(it.err, store.ErrExists); stale {
			b.retry(it)
		}
		if err := b.report(it); err != nil {
			return err
		}
	}
	b.items, b.length = b.items[:0], 0
	clear(b.refs)
	return nil
}

// commit makes all changes that were collected in one commit.
func (b *batch) commit() error {
	b.server.guards.namespaces.RLock()
	defer b.server.guards.namespaces.RUnlock()
	b.plan()
	var writes []store.Write
	var written []*item
	for _, it := range b.items {
		if it.err == nil && it.plan.unchanged == nil {
			writes, written = append(writes, it.plan.write), append(written, it)
		}
	}
	if len(writes) == 0 {
		return nil
	}
	results, err := b.server.commit(writes...)
	for i := range results {
		it := written[i]
		it.err = results[i].Err
		it.writing.options.warnings.add(results[i].Warnings...)
		it.result = applied{Result: wire.Configured, Object: results[i].Object}
		if it.plan.write.Create {
			it.result.Result = wire.Created
		} else if results[i].Removed {
			it.result = applied{Result: wire.Removed, Object: it.plan.write.Object}
		} else if it.err == nil && managedfields.SameText(results[i].Object, toStored(it.plan.before)) {
			it.result.Result = wire.Unchanged
		}
	}
	return err
}

// plan plans all items, on all processors.
func (b *batch) plan() {
	parallel.Do(len(b.items), 1, func(i int) {
		if it := b.items[i]; it.err == nil {
			it.plan, it.err = b.server.plan(it.writing)
		}
	})
}

// retry repeats a change that conflicted with a concurrent one.
func (b *batch) retry(it *item) {
	before, _ := b.server.store.Get(it.writing.request.ref())
	var created bool
	it.result = applied{Result: wire.Configured}
	it.result.Object, created, it.err = b.server.write(it.writing)
	switch now, _ := b.server.store.Get(it.writing.request.ref()); {
	case created:
		it.result.Result = wire.Created
	case it.err == nil && it.result.Object != nil && it.result.Object.GetMeta().DeletionTimestamp != nil && now == nil:
		it.result.Result = wire.Removed
	case it.err == nil && before != nil && managedfields.SameText(toStored(it.result.Object), before):
		it.result.Result = wire.Unchanged
	}
}

// report writes the result of one object.
func (b *batch) report(it *item) error {
	switch {
	case it.err != nil:
		r := b.request
		if it.writing != nil {
			r = it.writing.request
		}
		it.result = applied{Result: wire.Refused, Status: statusOf(it.err, r)}
	case it.plan.unchanged != nil && it.result.Object == nil:
		it.result = applied{Result: wire.Unchanged, Object: it.plan.unchanged}
	}
	if it.writing != nil {
		it.result.Warnings = it.writing.options.warnings
		if it.result.Object != nil {
			it.result.Object = shown(b.server.written(it.writing, it.result.Object), it.writing.request)
		}
	}
	return b.out.Encode(it.result)
}

// end commits the remaining items. If why is not nil, it then writes it as the error that ended the stream.
func (b *batch) end(why error) error {
	if err := b.flush(); err != nil || why == nil {
		return nil // the client hung up, or has all results
	}
	_ = b.out.Encode(applied{Result: wire.Refused, Status: statusOf(why, b.request)})
	return nil
}

// yamlLimit bounds a YAML document of a stream, in bytes.
const yamlLimit = 8 << 20

// A document is one value of a stream.
type document struct {
	content       any
	fieldWarnings []string // about duplicate fields
	line          int      // the line where it starts, in YAML
	length        int      // approximate, in bytes
	err           error    // why this document is unusable; the stream continues
}

// documents returns the values of a stream of YAML documents, or of JSON values. The items of arrays and Lists come one by one. An error
// ends the sequence.
func documents(body io.Reader, mediaType string) iter.Seq2[document, error] {
	return func(yield func(document, error) bool) {
		// The memory for a stream is that of its longest document, which may be a List.
		buffered := bufio.NewReaderSize(body, 64<<10)
		read := jsonDocuments
		if mediaType == typeYAML && !looksLikeJSON(buffered) {
			read = yamlDocuments
		}
		if err := read(buffered, func(d document) bool { return yield(d, nil) }); err != nil {
			yield(document{}, unreadable(err))
		}
	}
}

// unreadable returns the error to send for a stream that cannot be read further; err is the cause.
func unreadable(err error) error {
	var tooLong *http.MaxBytesError
	var own *statusError
	if errors.As(err, &tooLong) || errors.As(err, &own) {
		return err
	}
	return badRequest("error decoding patch: %v", err)
}

// looksLikeJSON reports whether the first non-blank character of a stream is { or [.
func looksLikeJSON(r *bufio.Reader) bool {
	for n := 1; n <= r.Size(); n++ {
		head, err := r.Peek(n)
		if err != nil {
			return false
		}
		switch head[n-1] {
		case ' ', '\t', '\r', '\n':
		case '{', '[':
			return true
		default:
			return false
		}
	}
	return false
}

// jsonDocuments reads a stream of JSON values, until yield gives false.
func jsonDocuments(r *bufio.Reader, yield func(document) bool) error {
	d := json.NewDecoder(r)
	for {
		var value json.RawMessage
		err := d.Decode(&value)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if more, err := jsonValue(value, yield); err != nil || !more {
			return err
		}
	}
}

// jsonValue yields a value, or the items of an array or List.
func jsonValue(value json.RawMessage, yield func(document) bool) (more bool, err error) {
	items, err := itemsOf(value)
	if err != nil {
		return false, err
	}
	if items == nil {
		return yield(jsonDocument(value)), nil
	}
	for _, item := range items {
		if !yield(jsonDocument(item)) {
			return false, nil
		}
	}
	return true, nil
}

// jsonDocument returns one value of a stream as a document; a value that is too large or too deep has an error of its own, so the stream
// goes on.
func jsonDocument(text json.RawMessage) document {
	content, fieldWarnings, err := schema.Parse(text)
	if err != nil {
		err = unreadable(err)
	}
	return document{content: content, fieldWarnings: fieldWarnings, length: len(text), err: err}
}

// itemsOf returns the members of an array, or the items of a List; nil when a value is neither.
func itemsOf(value json.RawMessage) ([]json.RawMessage, error) {
	items := []json.RawMessage{}
	if bytes.HasPrefix(value, []byte("[")) {
		return items, json.Unmarshal(value, &items)
	}
	if !bytes.Contains(value, []byte(`List"`)) {
		return nil, nil
	}
	list := struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}{}
	if json.Unmarshal(value, &list) != nil || !strings.HasSuffix(list.Kind, "List") {
		return nil, nil // the error is found when it is read
	}
	return append(items, list.Items...), nil
}

// yamlDocuments reads a stream of YAML documents, until yield gives false.
func yamlDocuments(r *bufio.Reader, yield func(document) bool) error {
	limits := manifest.Limits{Bytes: yamlLimit, Depth: schema.MaxDepth}
	for line, done := 1, false; !done; {
		text, err := yamlText(r)
		if done = errors.Is(err, io.EOF); err != nil && !done {
			return err
		}
		values, problem := manifest.Values(text, limits)
		if problem != nil {
			return fmt.Errorf("line %d: %s", line+problem.Line-1, problem.Message)
		}
		for _, value := range values {
			for _, d := range yamlItems(value, len(text)) {
				if d.line += line - 1; !yield(d) {
					return nil
				}
			}
		}
		line += bytes.Count(text, []byte("\n"))
	}
	return nil
}

// yamlText returns the text up to the next line that begins a document.
func yamlText(r *bufio.Reader) ([]byte, error) {
	var text []byte
	lineBegins := true
	for {
		if next, _ := r.Peek(4); lineBegins && len(text) > 0 && bytes.HasPrefix(next, []byte("---")) && (len(next) == 3 || strings.IndexByte(" \t\r\n", next[3]) >= 0) {
			return text, nil
		}
		part, err := r.ReadSlice('\n')
		text = append(text, part...)
		lineBegins = err == nil
		switch {
		case len(text) > yamlLimit:
			return text, tooLarge(fmt.Sprintf("a document of more than %d bytes: split it", yamlLimit))
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return text, err
		}
	}
}

// yamlItems returns a value as documents: the items of a list or List, or itself.
func yamlItems(value manifest.Value, length int) []document {
	items, isList := value.Data.([]any)
	if o, ok := value.Data.(map[string]any); ok && !isList {
		named, _ := o["kind"].(string)
		items, isList = o["items"].([]any)
		isList = isList && strings.HasSuffix(named, "List")
	}
	fieldWarnings := duplicateFields(value)
	if !isList {
		return []document{{content: value.Data, fieldWarnings: fieldWarnings, line: value.Line, length: length}}
	}
	documents := make([]document, len(items))
	for i, item := range items {
		documents[i] = document{content: item, fieldWarnings: fieldWarnings, line: value.Line, length: length / len(items)}
	}
	return documents
}
