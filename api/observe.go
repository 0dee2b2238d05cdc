package api

import (
	"net/http"
	"strings"
	"time"
)

// Call is one request that was answered.
type Call struct {
	// Verb is the verb of the request: for objects get, list, watch, create and so on, for anything
	// else the method in lower case; "other" for an unknown one.
	Verb string
	// Resource is the resource, as services or services/status, or the path of anything else, as
	// /readyz; "" for paths that are not served.
	Resource string
	// Code is the status of the answer.
	Code int
	Took time.Duration
	// Endless is set for watches and waits, of which Took has no meaning.
	Endless bool
}

// Load counts requests and watches under way.
type Load struct{ Requests, Watches int64 }

// Load returns the requests and watches under way, over all listeners. Waits count as watches.
func (s *Server) Load() Load {
	return Load{
		Requests: s.onTLS.requests.Load() + s.onUnix.requests.Load(),
		Watches:  s.onTLS.watches.Load() + s.onUnix.watches.Load(),
	}
}

// observe wraps h so that Config.Observe is called for every request to mux.
func (s *Server) observe(mux *http.ServeMux, h http.Handler) http.Handler {
	if s.cfg.Observe == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		rec := &recorder{ResponseWriter: w}
		code := http.StatusInternalServerError // of a panic
		defer func() {
			verb, resource := s.name(mux, r)
			s.cfg.Observe(Call{Verb: verb, Resource: resource, Code: code, Took: time.Since(began), Endless: isEndless(r)})
		}()
		h.ServeHTTP(rec, r)
		if code = rec.code; code == 0 {
			code = http.StatusOK
		}
	})
}

// name returns the verb and resource of a request, from a bounded number of words.
func (s *Server) name(mux *http.ServeMux, r *http.Request) (verb, resource string) {
	if s.cfg.NameOf != nil {
		if verb, resource = s.cfg.NameOf(r); resource != "" {
			return verb, resource
		}
	}
	if _, pattern := mux.Handler(r); pattern != "/" {
		resource = strings.TrimSuffix(pattern, "{$}")
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return strings.ToLower(r.Method), resource
	}
	return "other", resource
}
