package api

import (
	"net/http"
	"strings"
	"time"
)

// Call is one request that was answered.
type Call struct {
	// Verb is what was asked for: of objects get, list, watch, create and so on, of
	// anything else the method in lower case; "other" for one that there is not.
	Verb string
	// Resource is the objects it was asked of, as services or services/status, or the path
	// of anything else, as /readyz; "" for what is not served.
	Resource string
	// Code is the status of the answer.
	Code int
	Took time.Duration
	// Endless says that it was a watch or a wait, of which Took tells nothing.
	Endless bool
}

// Load is how much is under way.
type Load struct{ Requests, Watches int64 }

// Load tells what is under way now, over all ways in. Waits count as watches.
func (s *Server) Load() Load {
	return Load{
		Requests: s.onTLS.requests.Load() + s.onUnix.requests.Load(),
		Watches:  s.onTLS.watches.Load() + s.onUnix.watches.Load(),
	}
}

// observe tells Config.Observe about every request to mux that comes to h.
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

// name is what a request wants, in a bounded number of words.
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
