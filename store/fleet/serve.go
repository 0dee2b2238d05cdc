package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet/stream"
)

// The requests of a leaf to a core box:
//
//	GET  /svcctl/v1/commits?after=MOD&id=ID  the commits after one, as a stream without end (package stream)
//	GET  /svcctl/v1/commits/head[?at=MOD]    the settings of the fleet, and the newest head, or the one of then
//	GET  /svcctl/v1/commits/state?least=MOD  all objects, as a stream
//	GET  /svcctl/v1/commits/boxes            the reports of all boxes, and the readers of sources
//	POST /svcctl/v1/commits/report           the report of the leaf
//
// An error is a Status of Kubernetes; of 503 its details name the state of the core box.

// Commits answers the requests of leaves. box returns the name of the leaf that sent a request; "": any.
func (e *Engine) Commits(box func(*http.Request) string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+CommitsPath, e.serveStream)
	mux.HandleFunc("GET "+CommitsPath+"/head", e.serveHead)
	mux.HandleFunc("GET "+CommitsPath+"/state", e.serveState)
	mux.HandleFunc("GET "+CommitsPath+"/boxes", func(w http.ResponseWriter, r *http.Request) {
		all, err := e.Boxes(r.Context())
		var holders map[string]string
		if err == nil {
			holders, err = e.SourceHolders(r.Context())
		}
		answer(w, boxesAnswer{all, holders}, err)
	})
	mux.HandleFunc("POST "+CommitsPath+"/report", func(w http.ResponseWriter, r *http.Request) {
		var report LeafReport
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxLeafReport)).Decode(&report); err != nil {
			refuse(w, http.StatusBadRequest, "BadRequest", "", "the report cannot be read: "+err.Error())
			return
		}
		if of := box(r); of != "" && of != report.Report.Box || report.Report.Box == "" {
			refuse(w, http.StatusForbidden, "Forbidden", "", "the certificate is of box "+of+", and the report of box "+report.Report.Box+": give the box the --node-name that its certificate has")
			return
		}
		err := e.handleLeafReport(r.Context(), &report)
		answer(w, reportAnswer{e.State().Writer}, err)
	})
	return mux
}

func (e *Engine) serveHead(w http.ResponseWriter, r *http.Request) {
	if text := r.URL.Query().Get("at"); text != "" {
		at, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			refuse(w, http.StatusBadRequest, "BadRequest", "", "at="+text+" is no revision of etcd")
			return
		}
		a := headAnswer{}
		if err = e.serves(); err == nil {
			a.Head, a.Known, err = e.origin.head(r.Context(), at)
		}
		if isCompacted(err) {
			err = errForgotten
		}
		if a.Head != nil {
			a.Mod = a.Head.mod
		}
		answer(w, a, err)
		return
	}
	err := e.newest(r.Context())
	e.mu.Lock()
	a := headAnswer{Settings: new(e.agreed), Head: e.read, Known: e.watched}
	e.mu.Unlock()
	if err == nil {
		a.Mod = a.Head.mod
	}
	answer(w, a, err)
}

func (e *Engine) serveStream(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	id := r.URL.Query().Get("id")
	if err != nil || id == "" {
		refuse(w, http.StatusBadRequest, "BadRequest", "", "which commits? Ask with ?after=REVISION&id=COMMIT, of etcd's revision and of the commit there")
		return
	}
	commits, end, err := e.openStream(r.Context(), stream.Position{Mod: after, ID: id})
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer end()
	packed(w)
	control := http.NewResponseController(w)
	if control.Flush() != nil {
		return // the leaf hung up
	}
	for {
		piece, err := commits.Next(r.Context())
		if err != nil {
			e.cfg.Log.Debug("a leaf is not served any more", "from", r.RemoteAddr, "why", err)
			return
		}
		if _, err := w.Write(piece); err != nil {
			e.cfg.Log.Info("a leaf does not read: it may ask again", "from", r.RemoteAddr, "err", err)
			return
		}
		if control.Flush() != nil {
			return
		}
	}
}

func (e *Engine) serveState(w http.ResponseWriter, r *http.Request) {
	least, _ := strconv.ParseInt(r.URL.Query().Get("least"), 10, 64) // 0: whatever there is
	all, end, err := e.openSnapshot(r.Context(), least)
	if err != nil {
		answer(w, nil, err)
		return
	}
	defer end()
	packed(w)
	for rest := all.data; len(rest) > 0; {
		piece := rest[:min(len(rest), 64<<10)] // each in the time that a leaf has for one
		if _, err := w.Write(piece); err != nil {
			return
		}
		rest = rest[len(piece):]
	}
}

// packed begins an answer of package stream, which is compressed as it is.
func packed(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
}

// answer answers with v, or with what an error means to a leaf.
func answer(w http.ResponseWriter, v any, err error) {
	var held *heldError
	var away *engine.AwayError
	switch {
	case err == nil:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // the leaf hung up
	case errors.Is(err, errForgotten):
		refuse(w, http.StatusGone, "Expired", "", err.Error())
	case errors.Is(err, errNoSuchCommit):
		refuse(w, http.StatusPreconditionFailed, "Conflict", "", err.Error())
	case errors.Is(err, errNamesake):
		refuse(w, http.StatusConflict, "Conflict", Namesake, err.Error())
	case errors.As(err, &held):
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", held.kind, held.why)
	case errors.As(err, &away), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", CutOff, err.Error())
	default:
		refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", CutOff, "etcd does not answer: "+err.Error())
	}
}

func refuse(w http.ResponseWriter, code int, reason string, state Kind, why string) {
	f := refusal{Kind: "Status", Version: "v1", Status: "Failure", Message: why, Reason: reason, Code: code}
	f.Details.State = state
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(f)
}
