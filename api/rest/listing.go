package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"

	"svcctl.io/svcctl/api/kube/table"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// listHead has the fields of a list except its items.
type listHead struct {
	object.TypeMeta
	Metadata table.ListMeta `json:"metadata"`
}

// tableHead has the fields of a Table except its rows.
type tableHead struct {
	object.TypeMeta
	Metadata          table.ListMeta `json:"metadata"`
	ColumnDefinitions []table.Column `json:"columnDefinitions"`
}

// respondList answers with a list in the form that the client asked for. Objects are encoded one by
// one as the client takes them: no second copy of the list is made. An error in the middle cuts the
// answer off, so that no client takes it for a whole one.
func (s *Server) respondList(w http.ResponseWriter, r *request, meta table.ListMeta, objects iter.Seq[object.Object]) error {
	l := &listing{form: r.form}
	switch r.form.shape {
	case tabular:
		l.head = tableHead{object.TypeMeta{Kind: table.KindTable, APIVersion: r.form.metaAPIVersion()}, meta, table.Columns(r.kind)}
		l.member, l.item = "rows", func(o object.Object) any { return s.row(r.form, o) }
	case metadata:
		l.head = listHead{object.TypeMeta{Kind: table.KindMetadataList, APIVersion: r.form.metaAPIVersion()}, meta}
		l.member, l.item = "items", func(o object.Object) any { return metadataOf(r.form, o) }
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
	member   string // that holds it
	item     func(object.Object) any
	typeMeta []byte // taken out of each item after its brace
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
