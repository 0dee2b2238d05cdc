package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// Endpoint is an operation with its handler.
type Endpoint struct {
	wire.Operation
	handler func(*Server) http.Handler
}

// Answer returns the endpoint that serves a route by a function of its parameters. An error that is no *wire.Failure is answered 503.
func Answer[Query, A any](at wire.Route[Query, A], answer func(r *http.Request, q Query) (A, error)) Endpoint {
	return handle(at.Operation, func(w http.ResponseWriter, r *http.Request) {
		if q, ok := parameters(w, r, at); ok {
			a, err := answer(r, q)
			if err != nil {
				failWith(w, err)
				return
			}
			writeJSON(w, http.StatusOK, a)
		}
	})
}

// Stream returns the endpoint that serves a route by values, one a line. A watch or a trace sends each as it comes. An error
// before the first value is answered as one of Answer; after it the answer is cut, so that a client does not take it for whole.
func Stream[Query, Value any](at wire.Route[Query, Value], answer func(r *http.Request, q Query, each func(Value) error) error) Endpoint {
	serve := func(s *Server, w http.ResponseWriter, r *http.Request) {
		q, ok := parameters(w, r, at)
		if !ok {
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		lines, flush, begun := json.NewEncoder(w), func() error { return nil }, false
		if isEndless(r) {
			flush = http.NewResponseController(w).Flush
		}
		begin := func() {
			if !begun {
				begun = true
				w.Header().Set("Content-Type", "application/jsonl")
				w.Header().Set("Cache-Control", "no-store")
			}
		}
		err := answer(r.WithContext(ctx), q, func(v Value) error {
			begin()
			err := lines.Encode(v)
			if err == nil {
				err = flush()
			}
			if err != nil { // the client hung up, or does not read
				cancel()
			}
			return err
		})
		switch {
		case err == nil:
			begin()
		case !begun:
			failWith(w, err)
		default:
			s.log.Warn("an answer ended early", "path", r.URL.Path, "err", err)
			panic(http.ErrAbortHandler)
		}
	}
	return Endpoint{at.Operation, func(s *Server) http.Handler {
		return s.streaming(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serve(s, w, r) }))
	}}
}

// Handle returns the endpoint that serves an operation by a handler, which may take its time for the body and the answer.
func Handle(at wire.Operation, h http.HandlerFunc) Endpoint {
	if at.Method == http.MethodGet {
		serve := h
		h = func(w http.ResponseWriter, r *http.Request) {
			if bodiless(w, r) {
				serve(w, r)
			}
		}
	}
	return Endpoint{at, func(s *Server) http.Handler { return s.streaming(h) }}
}

// handle returns the endpoint that serves an operation by a handler that answers at once.
func handle(at wire.Operation, h http.HandlerFunc) Endpoint {
	return Endpoint{at, func(*Server) http.Handler { return h }}
}

// parameters reads the parameters of a request without a body; when it returns false it has answered.
func parameters[Query, A any](w http.ResponseWriter, r *http.Request, _ wire.Route[Query, A]) (q Query, ok bool) {
	if !bodiless(w, r) {
		return q, false
	}
	if err := wire.ReadQuery(r.URL.Query(), &q); err != nil {
		failWith(w, wire.BadRequest("%v", err))
		return q, false
	}
	return q, true
}

// register serves an endpoint for users of its role, by its method alone.
func (s *Server) register(mux *http.ServeMux, e Endpoint) {
	role := auth.Reader
	if e.Admin {
		role = auth.Admin
	}
	mux.Handle(e.Path, needs(role, only(e.Method, e.handler(s))))
}

// only refuses requests by other methods. GET permits HEAD.
func only(method string, h http.Handler) http.Handler {
	allowed := method
	if method == http.MethodGet {
		allowed = "GET, HEAD"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && (r.Method != http.MethodHead || method != http.MethodGet) {
			spare(w, r)
			w.Header().Set("Allow", allowed)
			fail(w, http.StatusMethodNotAllowed, wire.ReasonMethodNotAllowed, fmt.Sprintf("%s is not allowed on %s: use %s", r.Method, r.URL.Path, method))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// get lets GET and HEAD without a body through to h and refuses the rest.
func get(h http.HandlerFunc) http.Handler {
	return only(http.MethodGet, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if bodiless(w, r) {
			h(w, r)
		}
	}))
}

// bodiless refuses a request with a body, and then returns false.
func bodiless(w http.ResponseWriter, r *http.Request) bool {
	if r.ContentLength == 0 {
		return true
	}
	spare(w, r)
	fail(w, http.StatusBadRequest, wire.ReasonBadRequest, r.Method+" takes no body: leave it out")
	return false
}

// Reply answers a request that Handle serves with a value, or an error.
func Reply(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		spare(w, r)
		failWith(w, err)
		return
	}
	writeJSON(w, http.StatusOK, v)
}

// failWith answers with an error.
func failWith(w http.ResponseWriter, err error) {
	if f, is := errors.AsType[*wire.Failure](err); is {
		writeJSON(w, f.Code, f)
		return
	}
	fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
}

// UserOf returns the name of the user of a request.
func UserOf(r *http.Request) string { return auth.From(r.Context()).Name }
