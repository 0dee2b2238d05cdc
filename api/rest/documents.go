package rest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/schema"
)

// yamlLimit bounds a YAML document of a stream, in bytes.
const yamlLimit = 8 << 20

// A document is one value of a stream.
type document struct {
	content       any
	fieldWarnings []string // about fields that are there twice
	line          int      // where it starts in YAML
	length        int      // about, in bytes
	err           error    // why it is none that can be used; the next ones can
}

// documents are the values of a stream of YAML documents, or of JSON values. The items
// of arrays and Lists come one by one. An error is the last of it.
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

// unreadable is the answer to a stream that cannot be read on.
func unreadable(err error) error {
	var tooLong *http.MaxBytesError
	var own *statusError
	if errors.As(err, &tooLong) || errors.As(err, &own) {
		return err
	}
	return badRequest("error decoding patch: %v", err)
}

// looksLikeJSON reports whether the first thing in a text is an object or an array.
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

// jsonValue yields a value, or the items in it.
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

// jsonDocument is one value of a stream. One that is too large or too deep stops no other.
func jsonDocument(text json.RawMessage) document {
	content, fieldWarnings, err := schema.Parse(text)
	if err != nil {
		err = unreadable(err)
	}
	return document{content: content, fieldWarnings: fieldWarnings, length: len(text), err: err}
}

// itemsOf are the members of an array, or the items of a List; nil when a value is neither.
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

// yamlText is the text up to the next line that begins a document.
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

// yamlItems is a value as documents: the items of a list or List, or itself.
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
