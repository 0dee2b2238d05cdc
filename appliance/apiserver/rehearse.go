package apiserver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// Rehearse applies the objects of a body of /svcctl/v1/apply to a store that is the caller's alone, and returns
// what became of each. The query, the type of the body and who asks are those of the request.
func Rehearse(objects *store.Store, look func(*object.Service), r *http.Request, body []byte) ([]wire.Applied, error) {
	server := rest.New(rest.Config{Objects: objects, Look: look, Log: slog.New(slog.DiscardHandler)})
	asked := r.Clone(r.Context())
	asked.URL.Path, asked.URL.RawPath = "/svcctl/v1/apply", ""
	asked.Body, asked.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	asked.Header.Del("Accept-Encoding") // the answer is read here
	said := &kept{header: http.Header{}, code: http.StatusOK}
	server.Handler().ServeHTTP(said, asked)
	if said.code != http.StatusOK {
		var failure wire.Failure
		if err := json.Unmarshal(said.body.Bytes(), &failure); err != nil {
			return nil, fmt.Errorf("the objects cannot be applied: %s", &said.body)
		}
		return nil, &failure
	}
	var all []wire.Applied
	for d := json.NewDecoder(&said.body); ; {
		var a wire.Applied
		switch err := d.Decode(&a); err {
		case nil:
			all = append(all, a)
		case io.EOF:
			return all, nil
		default:
			return nil, fmt.Errorf("read what became of the objects: %w", err)
		}
	}
}

// kept is an answer that is not sent.
type kept struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (k *kept) Header() http.Header { return k.header }

// WriteHeader implements http.ResponseWriter.
func (k *kept) WriteHeader(code int) { k.code = code }

// Write implements http.ResponseWriter.
func (k *kept) Write(b []byte) (int, error) { return k.body.Write(b) }
