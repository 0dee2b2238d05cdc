package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"svcctl.io/svcctl/api/kube/table"
	"svcctl.io/svcctl/store/alloc"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
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
	document := any(o)
	switch r.form.shape {
	case tabular:
		t := s.tableOf(r)
		t.Metadata.ResourceVersion = o.GetMeta().ResourceVersion
		t.Rows = []table.Row{s.row(r.form, o)}
		document = t
	case metadata:
		document = metadataOf(r.form, o)
	}
	return respondJSON(w, r.http, code, r.form.pretty, document)
}

// respondStatus answers with a Status, which has one form only.
func (s *Server) respondStatus(w http.ResponseWriter, r *request, st *status) error {
	code := st.Code
	if code == 0 {
		code = http.StatusOK
	}
	return respondJSON(w, r.http, code, r.form.pretty, st)
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

// encode is a document in JSON, with a newline at its end.
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

// send answers with a text that is there already. What the API tells changes at any time, so it
// must not be cached unless the headers say so already.
func send(w http.ResponseWriter, r *http.Request, code int, contentType string, text []byte) {
	w.Header().Set("Content-Type", contentType)
	if w.Header().Get("Cache-Control") == "" {
		w.Header().Set("Cache-Control", "no-cache, private")
	}
	a := newAnswer(w, r, code)
	_, _ = a.Write(text)
	a.Close()
}

// fail answers with what went wrong. Internal errors are logged; that a range is full is none.
func (s *Server) fail(w http.ResponseWriter, r *request, err error) {
	e := statusOf(err, r)
	if e.code == http.StatusInternalServerError && !errors.Is(err, alloc.ErrFull) {
		s.log.Error("request failed", "method", r.http.Method, "path", r.http.URL.Path, "user", r.user.Name, "err", err)
	}
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(e.retryAfter))
	}
	if err := respondJSON(w, r.http, e.code, r.form.pretty, e.status()); err != nil {
		s.log.Error("answer failed", "path", r.http.URL.Path, "err", err)
	}
}

// tableOf is a Table without rows, in the version that was asked for.
func (s *Server) tableOf(r *request) *table.Table {
	t := table.New(r.kind, table.ListMeta{})
	t.APIVersion = r.form.metaAPIVersion()
	return t
}

// row is the row of an object.
func (s *Server) row(f form, o object.Object) table.Row {
	row := table.RowOf(o, f.include, s.now())
	if f.include == table.IncludeMetadata {
		row.Object = metadataOf(f, o)
	}
	return row
}

func metadataOf(f form, o object.Object) table.Metadata {
	m := table.MetadataOf(o)
	m.APIVersion = f.metaAPIVersion()
	return m
}

// indentation of JSON for people.
const indentation = "  "
