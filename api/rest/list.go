package rest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"svcctl.io/svcctl/api/kube/selector"
	"svcctl.io/svcctl/api/kube/table"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// list answers with the objects of a collection.
func (s *Server) list(w http.ResponseWriter, r *request) error {
	o, err := listOptionsOf(r)
	if err != nil {
		return err
	}
	if o.continueToken == "" {
		if err := s.fresh(w, r, r.query.Get("resourceVersion"), o.revision); err != nil {
			return err
		}
	}
	at, start, err := s.startOf(&o)
	if err != nil {
		return err
	}
	leave, err := s.enter(r)
	if err != nil {
		return err
	}
	defer leave()
	all := s.collectionOf(r.kind, r.form)
	objects, revision, err := all.list(r.namespace, at)
	if objects, err = o.behind(objects, start, err); err != nil {
		return err
	}
	page := pageOf(objects, &o)
	return s.respondList(w, r, page.meta(objects, revision, &o), o.selected(page.objects, viewOf(all)))
}

// meta returns the metadata of the list that p is a page of: the revision and, if more objects follow, the continue token. The number of those
// objects is set only if the request selects all objects.
func (p page) meta(objects []object.Object, revision uint64, o *listOptions) table.ListMeta {
	meta := table.ListMeta{ResourceVersion: strconv.FormatUint(revision, 10)}
	if !p.more {
		return meta
	}
	last := p.objects[len(p.objects)-1].GetMeta()
	meta.Continue = after(last.Namespace, last.Name, int64(revision))
	if o.everything() {
		meta.RemainingItemCount = new(int64(len(objects) - p.length))
	}
	return meta
}

// startOf returns the revision at which to list, 0 for the newest, and the object after which the list starts.
func (s *Server) startOf(o *listOptions) (at uint64, start viewKey, err error) {
	current := s.store.Revision()
	if o.continueToken != "" {
		token, err := readToken(o.continueToken)
		switch {
		case err != nil:
			return 0, start, err
		case o.revision != 0:
			return 0, start, badRequest("specifying resource version is not allowed when using continue")
		case token.Revision == latest:
			return 0, token.position(), nil
		case uint64(token.Revision) > current:
			return 0, start, fromTheFuture(uint64(token.Revision), current)
		}
		return uint64(token.Revision), token.position(), nil
	}
	if o.revision > current {
		return 0, start, fromTheFuture(o.revision, current)
	}
	// Without a match, all pages of a list are of one revision.
	if o.match == matchExact || o.match == "" && o.limit > 0 {
		at = o.revision
	}
	return at, start, nil
}

// expired returns the error for a list at a revision that the store no longer has. For a paged list, it includes a continue token that lists the rest
// at the newest revision.
func (o *listOptions) expired(start viewKey) error {
	if o.continueToken == "" {
		return expired("The resourceVersion for the provided list is too old.")
	}
	e := expired("The provided continue parameter is too old to display a consistent list result. You can start a new list without " +
		"the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the " +
		"provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk " +
		"was returned and now may show up in the list.")
	e.Metadata.Continue = after(start.namespace, start.name, latest)
	return e
}

// behind returns the objects after start, the position of the continue token, or all objects without a token. err is the error of listing the
// objects. If it is not nil, behind returns it, with store.ErrExpired replaced by the error for an expired list.
func (o *listOptions) behind(objects []object.Object, start viewKey, err error) ([]object.Object, error) {
	if errors.Is(err, store.ErrExpired) {
		return nil, o.expired(start)
	}
	if err != nil || o.continueToken == "" {
		return objects, err
	}
	first := sort.Search(len(objects), func(i int) bool {
		meta := objects[i].GetMeta()
		return compareKeys(viewKey{meta.Namespace, meta.Name}, start) > 0
	})
	return objects[first:], nil
}

// decodedAtOnce bounds the objects of a list that are kept decoded. The others are decoded when a client has taken these.
const decodedAtOnce = 512

// page is the range of a list that one answer covers.
type page struct {
	// objects are those in the page. If there are a limit and a selection, they are the selected ones, of which the first are decoded.
	objects []object.Object
	length  int // number of objects in the page, including those not selected
	more    bool
}

// pageOf returns the page that begins with the first of objects. It ends before the limit of selected objects would be exceeded.
func pageOf(objects []object.Object, o *listOptions) page {
	if n := int64(len(objects)); o.limit <= 0 || o.everything() {
		if o.limit > 0 {
			n = min(n, o.limit)
		}
		return page{objects: objects[:n], length: int(n), more: int(n) < len(objects)}
	}
	p := page{}
	for i, object := range objects {
		decoded := store.Selected(object, o.name, o.text)
		if !o.selects(decoded) {
			continue
		}
		if int64(len(p.objects)) == o.limit {
			p.more = true
			return p
		}
		if len(p.objects) >= decodedAtOnce {
			decoded = object
		}
		p.objects, p.length = append(p.objects, decoded), i+1
	}
	return p
}

// selected yields the objects that the options select, converted by show.
func (o *listOptions) selected(objects []object.Object, show func(object.Object) object.Object) iter.Seq[object.Object] {
	return func(yield func(object.Object) bool) {
		for portion := range slices.Chunk(objects, decodedAtOnce) {
			for _, object := range store.SelectedOf(portion, o.name, o.text) {
				if o.selects(object) && !yield(show(object)) {
					return
				}
			}
		}
	}
}

// The values of resourceVersionMatch.
const (
	matchExact        = "Exact"
	matchNotOlderThan = "NotOlderThan"
)

// longestWatch bounds the time of a watch that a client may ask for.
const longestWatch = 24 * time.Hour

// listOptions is the query of a list or a watch (meta/v1 ListOptions).
type listOptions struct {
	selection
	limit         int64
	continueToken string
	version       string // resourceVersion: "", "0", or a revision
	revision      uint64 // revision in version; 0 if that is "" or "0"
	match         string // resourceVersionMatch
	timeout       time.Duration
	bookmarks     bool
	initial       *bool // sendInitialEvents
}

// listOptionsOf reads the query of a list or a watch. Unknown keys are ignored, as by the API
// server of Kubernetes.
func listOptionsOf(r *request) (o listOptions, err error) {
	if o.limit, err = intIn(r, "limit"); err != nil {
		return o, err
	}
	seconds, err := intIn(r, "timeoutSeconds")
	if err != nil {
		return o, err
	}
	o.timeout = time.Duration(min(seconds, int64(longestWatch/time.Second))) * time.Second
	o.continueToken = r.query.Get("continue")
	o.match = r.query.Get("resourceVersionMatch")
	o.bookmarks = boolIn(r, "allowWatchBookmarks")
	if r.query.Has("sendInitialEvents") {
		o.initial = new(boolIn(r, "sendInitialEvents"))
	}
	o.version = r.query.Get("resourceVersion")
	if o.revision, err = revisionOf(o.version); err != nil {
		return o, err
	}
	check := o.checkList
	if r.verb == "watch" {
		check = o.checkWatch
	}
	if errs := check(); len(errs) > 0 {
		return o, invalid("meta.k8s.io", "ListOptions", "", errs)
	}
	o.selection, err = selectionOf(r)
	return o, err
}

// intIn parses a number in the query of a request; 0 if it is missing.
func intIn(r *request, key string) (int64, error) {
	text := r.query.Get(key)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, badRequest("%s=%s: want a number", key, text)
	}
	return n, nil
}

// boolIn reports whether a query parameter is present and neither 0 nor false. Case is ignored, because some clients send True.
func boolIn(r *request, key string) bool {
	values := r.query[key]
	return len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// revisionOf reads a resourceVersion; "" is 0.
func revisionOf(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	revision, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, badRequest("invalid resource version: %q: want a number", text)
	}
	return revision, nil
}

// checkList returns errors about combinations of query parameters that a list does not accept (ValidateListOptions of
// pkg/apis/meta/internalversion/validation).
func (o *listOptions) checkList() object.Errors {
	var errs object.Errors
	if o.match != "" {
		if o.version == "" {
			errs = append(errs, forbiddenOption("resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"))
		}
		if o.continueToken != "" {
			errs = append(errs, forbiddenOption("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided"))
		}
		if o.match != matchExact && o.match != matchNotOlderThan {
			errs = append(errs, unsupported("resourceVersionMatch", o.match, matchExact, matchNotOlderThan, ""))
		}
		if o.match == matchExact && o.version == "0" {
			errs = append(errs, forbiddenOption("resourceVersionMatch", `resourceVersionMatch "exact" is forbidden for resourceVersion "0"`))
		}
	}
	if o.initial != nil {
		errs = append(errs, forbiddenOption("sendInitialEvents", "sendInitialEvents is forbidden for list"))
	}
	return errs
}

// checkWatch returns errors about combinations of query parameters that a watch does not accept; see checkList.
func (o *listOptions) checkWatch() object.Errors {
	var errs object.Errors
	if o.initial != nil && o.match != matchNotOlderThan {
		errs = append(errs, forbiddenOption("resourceVersionMatch", fmt.Sprintf("sendInitialEvents requires setting resourceVersionMatch to %s", matchNotOlderThan)))
	}
	if o.match == "" {
		return errs
	}
	if o.initial == nil {
		errs = append(errs, forbiddenOption("resourceVersionMatch", "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"))
	}
	if o.match != matchNotOlderThan {
		errs = append(errs, unsupported("resourceVersionMatch", o.match, matchNotOlderThan))
	}
	if o.continueToken != "" {
		errs = append(errs, forbiddenOption("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided"))
	}
	return errs
}

func forbiddenOption(field, detail string) object.Error {
	return object.Error{Type: object.FieldValueForbidden, Field: field, Detail: detail}
}

// latest, in place of the revision of a continueToken, continues a list with the newest objects.
const latest = -1

// continueToken is the position at which a list continues. Clients must not look into it, but
// it has the form of Kubernetes' own.
type continueToken struct {
	Version  string `json:"v"`
	Revision int64  `json:"rv"`
	// Start is the "namespace/name" of the object after which the list continues.
	Start string `json:"start"`
}

const tokenVersion = "meta.k8s.io/v1"

// after returns the token with which a list continues after an object.
func after(namespace, name string, revision int64) string {
	text, _ := json.Marshal(continueToken{tokenVersion, revision, namespace + "/" + name}) // text and a number
	return base64.RawURLEncoding.EncodeToString(text)
}

// readToken reads the value of continue in a query.
func readToken(text string) (continueToken, error) {
	var token continueToken
	decoded, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(decoded, &token)
	}
	switch {
	case err != nil:
		return token, badRequest("invalid continue token: continue key is not valid: %v", err)
	case token.Version != tokenVersion:
		return token, badRequest("invalid continue token: continue key is not valid: server does not recognize this encoded version %s", token.Version)
	case token.Revision == 0 || token.Revision < latest:
		return token, badRequest("invalid continue token: continue key is not valid: incorrect encoded start resourceVersion (version %s)", tokenVersion)
	case !strings.Contains(token.Start, "/"):
		return token, badRequest("invalid continue token: continue key is not valid: %q", token.Start)
	}
	return token, nil
}

// position returns the key of the object after which the list continues.
func (t continueToken) position() viewKey {
	namespace, name, _ := strings.Cut(t.Start, "/")
	return viewKey{namespace, name}
}

// fieldName is the field that every object can be selected by.
const fieldName = "metadata.name"

// selection is the set of objects of a collection that a request selects, by labels, fields and name.
type selection struct {
	labels selector.Labels
	fields selector.Fields
	name   string // name of the only object selected; "" for no restriction
	text   string // text that the JSON of all selected objects contains; "" if there is none
}

// selectionOf reads the selectors of a request. A name in the path of a watch selects that name.
func selectionOf(r *request) (selection, error) {
	labels, err := selector.ParseLabels(r.query.Get("labelSelector"))
	if err != nil {
		return selection{}, badRequest("unable to parse %q as a label selector: %v", r.query.Get("labelSelector"), err)
	}
	text := r.query.Get("fieldSelector")
	fields, err := selector.ParseFields(r.kind, text)
	if err != nil {
		return selection{}, badRequest("unable to parse %q as a field selector: %v", text, err)
	}
	s := selection{labels, fields, r.name, cmp.Or(fields.Text(), labels.Text())}
	if r.name == "" {
		s.name, _ = fields.Exact(fieldName)
		return s, nil
	}
	if named, ok := fields.Exact(fieldName); ok && named != r.name || !ok && !fields.Empty() {
		return selection{}, badRequest("fieldSelector metadata.name doesn't match requested name")
	}
	return s, nil
}

// everything reports whether the selection leaves out no object of the collection.
func (s selection) everything() bool { return s.labels.Empty() && s.fields.Empty() && s.name == "" }

// selects reports whether an object is in the selection; nil is not.
func (s selection) selects(o object.Object) bool {
	return o != nil && (s.name == "" || s.name == o.GetMeta().Name) && s.labels.Matches(o.GetMeta().Labels) && s.fields.Matches(o)
}

// reachTimeout bounds the wait of a read for a revision that another box has written and that has not arrived.
const reachTimeout = 3 * time.Second

// fresh makes a read include earlier writes of all boxes that share the store. given is the resourceVersion of the request, and revision its number.
//
// If given is not "", fresh waits until this box has the revision, at most reachTimeout; the caller checks whether it has. If given is "", fresh
// waits for the newest revision of the store. If the other boxes do not answer, the read uses the local objects and gets a warning. A read of a Lease
// fails then, because clients elect a leader with it.
func (s *Server) fresh(w http.ResponseWriter, r *request, given string, revision uint64) error {
	if !s.store.IsShared() {
		return nil
	}
	if given != "" {
		s.reach(r.http.Context(), revision)
		return nil
	}
	err := s.store.Fresh(r.http.Context())
	switch {
	case err == nil || !isAway(err):
		return err
	case r.kind.Name == object.KindLease:
		return unavailable("the newest version is not known: "+err.Error(), busyRetry)
	}
	warnings{fmt.Sprintf("this is as of revision %d, and may be old: %v", s.store.Revision(), err)}.send(w)
	return nil
}

// reach waits, for at most reachTimeout, until the store has a revision.
func (s *Server) reach(ctx context.Context, revision uint64) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	for {
		published := s.store.Published()
		if s.store.Revision() >= revision {
			return
		}
		select {
		case <-published:
		case <-ctx.Done():
			return
		}
	}
}

// get answers with one object.
func (s *Server) get(w http.ResponseWriter, r *request) error {
	revision, err := revisionOf(r.query.Get("resourceVersion"))
	if err != nil {
		return err
	}
	if err := s.fresh(w, r, r.query.Get("resourceVersion"), revision); err != nil {
		return err
	}
	if current := s.store.Revision(); revision > current {
		return fromTheFuture(revision, current)
	}
	o := s.collectionOf(r.kind, r.form).get(r.namespace, r.name)
	if o == nil {
		return notFound(r.kind, r.name)
	}
	return s.respond(w, r, http.StatusOK, s.managed(r, o))
}

// listHead has the fields of a list except its items.
type listHead struct {
	object.TypeMeta
	Metadata table.ListMeta `json:"metadata"`
}

// respondList answers with a list in the form that the client asked for. It encodes the objects one by one as the client reads them, so that no
// second copy of the list is in memory. After an error in the middle it aborts the connection, so that the client detects the truncation.
func (s *Server) respondList(w http.ResponseWriter, r *request, meta table.ListMeta, objects iter.Seq[object.Object]) error {
	l := &listing{form: r.form}
	switch version := r.form.metaAPIVersion(); r.form.shape {
	case tabular:
		l.head = table.New(r.kind, version, meta)
		l.member, l.item = "rows", func(o object.Object) any { return table.RowOf(o, r.form.include, version, s.now()) }
	case metadata:
		l.head = listHead{object.TypeMeta{Kind: table.KindMetadataList, APIVersion: version}, meta}
		l.member, l.item = "items", func(o object.Object) any { return table.MetadataOf(o, version) }
	default:
		l.head = listHead{object.TypeMeta{Kind: r.kind.Name + "List", APIVersion: r.kind.APIVersion()}, meta}
		l.member, l.item = "items", func(o object.Object) any { return o }
		// The items of a list have its kind, and do not repeat it.
		l.typeMeta = []byte(fmt.Sprintf("\"kind\":%q,\"apiVersion\":%q,", r.kind.Name, r.kind.APIVersion()))
	}
	contentType, write := typeJSON, l.writeJSON
	if r.form.yaml {
		contentType, write = typeYAML, l.writeYAML
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-cache, private")
	a := newAnswer(w, r.http, http.StatusOK)
	err := write(a, objects)
	switch {
	case err == nil || a.err != nil: // an error in writing is the client's
		a.Close()
		return nil
	case !a.begun:
		a.drop()
		return err
	}
	a.drop()
	s.log.Error("list cut off", "path", r.http.URL.Path, "err", err)
	panic(http.ErrAbortHandler)
}

// listing writes a list.
type listing struct {
	form     form
	head     any    // the list without its items
	member   string // the field of the list that has the items
	item     func(object.Object) any
	typeMeta []byte // kind and apiVersion as JSON, which are cut from the start of each item
	scratch  bytes.Buffer
}

// writeJSON writes {head..., "member":[items...]}.
func (l *listing) writeJSON(w io.Writer, objects iter.Seq[object.Object]) error {
	head, err := encode(l.head, l.form.pretty)
	if err != nil {
		return err
	}
	glue, prefix, end := ",\"%s\":[", "", "]}\n"
	if l.form.pretty {
		glue, prefix, end = ",\n"+indentation+"\"%s\": [", "\n"+indentation+indentation, "\n"+indentation+"]\n}\n"
	}
	head = bytes.TrimSuffix(bytes.TrimSuffix(head, []byte("}\n")), []byte("\n"))
	if _, err := fmt.Fprintf(w, "%s"+glue, head, l.member); err != nil {
		return err
	}
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	separator := prefix
	for o := range objects {
		encoded.Reset()
		if err := encoder.Encode(l.item(o)); err != nil {
			return fmt.Errorf("encode %s: %w", object.RefOf(o), err)
		}
		if _, err := io.WriteString(w, separator); err != nil {
			return err
		}
		if err := l.writeItem(w, bytes.TrimSuffix(encoded.Bytes(), []byte("\n"))); err != nil {
			return err
		}
		separator = "," + prefix
	}
	if separator == prefix { // nothing: the brackets stand together
		end = "]" + end[bytes.IndexByte([]byte(end), ']')+1:]
	}
	_, err = io.WriteString(w, end)
	return err
}

// writeItem writes an item, without its kind and apiVersion.
func (l *listing) writeItem(w io.Writer, text []byte) error {
	if rest, ok := bytes.CutPrefix(text[1:], l.typeMeta); ok && len(l.typeMeta) > 0 {
		// The byte before the rest is the comma behind typeMeta.
		text = text[len(text)-len(rest)-1:]
		text[0] = '{'
	}
	if l.form.pretty {
		l.scratch.Reset()
		if err := json.Indent(&l.scratch, text, indentation+indentation, indentation); err != nil {
			return err
		}
		text = l.scratch.Bytes()
	}
	_, err := w.Write(text)
	return err
}

// writeYAML writes a list of whole objects as a YAML document.
func (l *listing) writeYAML(w io.Writer, objects iter.Seq[object.Object]) error {
	head := l.head.(listHead)
	if _, err := fmt.Fprintf(w, "apiVersion: %s\nkind: %s\nmetadata:\n  resourceVersion: %q\n", head.APIVersion, head.Kind, head.Metadata.ResourceVersion); err != nil {
		return err
	}
	if head.Metadata.Continue != "" {
		if _, err := fmt.Fprintf(w, "  continue: %q\n", head.Metadata.Continue); err != nil {
			return err
		}
	}
	start := "items:\n"
	for o := range objects {
		text, err := manifest.EncodeYAML(o)
		if err != nil {
			return err
		}
		text = bytes.ReplaceAll(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"), []byte("\n  "))
		if _, err := fmt.Fprintf(w, "%s- %s\n", start, text); err != nil {
			return err
		}
		start = ""
	}
	if start != "" {
		_, err := io.WriteString(w, "items: []\n")
		return err
	}
	return nil
}
