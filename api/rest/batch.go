package rest

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/managedfields"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/parallel"
)

const (
	// batchLimit bounds a batch, in bytes: about 60,000 Services.
	batchLimit = 64 << 20
	// A commit of a batch has at most commitObjects objects, or commitBytes bytes of them.
	commitBytes = 4 << 20
)

// typeLines is the media type of JSON values one a line.
const typeLines = "application/x-ndjson"

// batch answers POST /svcctl/v1/apply: the server-side apply of all objects in the body, a
// stream of JSON values, Lists, arrays, or YAML documents. The answer has a line of JSON
// (wire.Applied) for each, in their order, while the rest still comes in. A refused object
// stops no other; a stream that becomes unreadable ends with a line with the error.
// Objects that name no namespace go to the one in the query, or to default.
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

// patientReader reads a body whose sender may take its time for the whole of it, but not for
// each piece.
type patientReader struct {
	body    io.Reader
	control *http.ResponseController
}

func (p *patientReader) Read(b []byte) (int, error) {
	_ = p.control.SetReadDeadline(time.Now().Add(patience))
	return p.body.Read(b)
}

// batch is the work on one batch: objects are collected until they are worth a commit.
type batch struct {
	server  *Server
	request *request
	options *options
	out     *json.Encoder

	items  []*item
	refs   map[object.Ref]bool // of items
	length int                 // of items, in bytes
	spaces map[string]bool     // the namespaces that a dry run has made so far
}

// item is one object of a batch.
type item struct {
	writing *writing
	plan    plan
	result  applied
	err     error
}

// applied is wire.Applied with the object as it is.
type applied struct {
	Result   string        `json:"result"`
	Object   object.Object `json:"object,omitempty"`
	Status   *statusError  `json:"status,omitempty"`
	Warnings []string      `json:"warnings,omitempty"`
}

// add takes one document in. The error is that of the answer.
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
		r.namespace = textIn(content, "namespace")
		if r.namespace == "" {
			r.namespace = b.request.query.Get("namespace")
		}
		r.namespace = cmp.Or(r.namespace, "default")
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
			it.result.Object = shown(it.result.Object, it.writing.request)
		}
	}
	return b.out.Encode(it.result)
}

// end commits the rest, and writes the error that ended the stream; nil: there was none.
func (b *batch) end(why error) error {
	if err := b.flush(); err != nil || why == nil {
		return nil // the client hung up, or has all results
	}
	_ = b.out.Encode(applied{Result: wire.Refused, Status: statusOf(why, b.request)})
	return nil
}
