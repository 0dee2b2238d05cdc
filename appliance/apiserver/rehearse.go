package apiserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"

	"svcctl.io/svcctl/api/rest"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// Rehearse applies the objects of a body of /svcctl/v1/apply to a store that is the caller's alone, and returns
// the result of each. The query, the type of the body and the user are those of the request.
func Rehearse(objects *store.Store, look func(*object.Service), r *http.Request, body []byte) ([]wire.Applied, error) {
	server := rest.New(rest.Config{Objects: objects, Look: look, Log: slog.New(slog.DiscardHandler)})
	asked := r.Clone(r.Context())
	asked.URL.Path, asked.URL.RawPath = "/svcctl/v1/apply", ""
	answer, err := answerTo(server, asked, body)
	if err != nil {
		return nil, err
	}
	var all []wire.Applied
	for d := json.NewDecoder(&answer.body); ; {
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

// RehearseRemovals removes objects from such a store. It returns the refusals by their path; a missing object is no refusal.
func RehearseRemovals(objects *store.Store, r *http.Request, removals []wire.PlanRemoval) (refused map[string]*wire.Failure, err error) {
	server := rest.New(rest.Config{Objects: objects, Log: slog.New(slog.DiscardHandler)})
	refused = map[string]*wire.Failure{}
	for i := range removals {
		options := map[string]any{"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
		if uid := removals[i].UID; uid != "" {
			options["preconditions"] = map[string]any{"uid": uid}
		}
		body, err := json.Marshal(options)
		if err != nil {
			return nil, err
		}
		asked := r.Clone(r.Context())
		asked.Method, asked.URL = http.MethodDelete, &url.URL{Path: removals[i].Path}
		asked.Header.Set("Content-Type", "application/json")
		asked.Header.Del("Accept") // a Table, or protobuf
		_, err = answerTo(server, asked, body)
		failure, is := errors.AsType[*wire.Failure](err)
		switch {
		case err != nil && !is:
			return nil, err
		case is && failure.Code != http.StatusNotFound:
			refused[removals[i].Path] = failure
		}
	}
	return refused, nil
}

// answerTo has a server answer a request. A refusal is an error, a *wire.Failure if it is one of the API.
func answerTo(server *rest.Server, r *http.Request, body []byte) (*recordedAnswer, error) {
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.Header.Del("Accept-Encoding") // the answer is read here
	answer := &recordedAnswer{header: http.Header{}, code: http.StatusOK}
	server.Handler().ServeHTTP(answer, r)
	if answer.code < http.StatusBadRequest {
		return answer, nil
	}
	var failure wire.Failure
	if err := json.Unmarshal(answer.body.Bytes(), &failure); err != nil {
		return nil, fmt.Errorf("%s %s cannot be done: %s", r.Method, r.URL.Path, &answer.body)
	}
	return nil, &failure
}

// recordedAnswer is an answer that is not sent.
type recordedAnswer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (k *recordedAnswer) Header() http.Header { return k.header }

// WriteHeader implements http.ResponseWriter.
func (k *recordedAnswer) WriteHeader(code int) { k.code = code }

// Write implements http.ResponseWriter.
func (k *recordedAnswer) Write(b []byte) (int, error) { return k.body.Write(b) }
