package api

import (
	"errors"
	"fmt"
	"net/http"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

// route serves an operation by a function of its parameters. An error of it that is no *wire.Failure is answered 503.
func route[Query, Answer any](mux *http.ServeMux, at wire.Route[Query, Answer], answer func(r *http.Request, q Query) (Answer, error)) {
	operation(mux, at.Operation, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q, ok := asked(w, r, at); ok {
			a, err := answer(r, q)
			if err != nil {
				failWith(w, err)
				return
			}
			writeJSON(w, http.StatusOK, a)
		}
	}))
}

// asked reads the parameters of a request without a body; when it returns false it has answered.
func asked[Query, Answer any](w http.ResponseWriter, r *http.Request, _ wire.Route[Query, Answer]) (q Query, ok bool) {
	if !bodiless(w, r) {
		return q, false
	}
	if err := wire.ReadQuery(r.URL.Query(), &q); err != nil {
		fail(w, http.StatusBadRequest, wire.ReasonBadRequest, err.Error())
		return q, false
	}
	return q, true
}

// operation serves an operation by a handler, for those who may ask and by its method alone.
func operation(mux *http.ServeMux, at wire.Operation, h http.Handler) {
	role := auth.Reader
	if at.Admin {
		role = auth.Admin
	}
	mux.Handle(at.Path, needs(role, only(at.Method, h)))
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

// failWith answers with an error.
func failWith(w http.ResponseWriter, err error) {
	if f, is := errors.AsType[*wire.Failure](err); is {
		writeJSON(w, f.Code, f)
		return
	}
	fail(w, http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, err.Error())
}

// badRequest is the error of parameters that are invalid.
func badRequest(format string, args ...any) error {
	return wire.NewFailure(http.StatusBadRequest, wire.ReasonBadRequest, fmt.Sprintf(format, args...))
}

// unavailable is the error of what cannot be done now.
func unavailable(what string, err error) error {
	return wire.NewFailure(http.StatusServiceUnavailable, wire.ReasonServiceUnavailable, what+": "+err.Error())
}

// conflict is the error of what the state does not permit.
func conflict(what string, err error) error {
	return wire.NewFailure(http.StatusConflict, wire.ReasonConflict, what+": "+err.Error())
}

// userOf names the user of a request.
func userOf(r *http.Request) string { return auth.From(r.Context()).Name }
