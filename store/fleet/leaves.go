package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/fleet/stream"
)

// A core box serves its commits to leaves. While no leaf follows it keeps nothing for them.

// snapshot holds all objects as of one head, encoded for leaves. Leaves that request it at the same time share it.
type snapshot struct {
	readers int // number of leaves that read it, guarded by position.mu
	ready   chan struct{}
	// mod, data and err are valid once ready is closed.
	mod  int64
	data []byte
	err  error
}

// openStream returns the stream of commits after a position. The caller calls end.
func (e *Engine) openStream(ctx context.Context, after stream.Position) (r *stream.Reader, end func(), err error) {
	if e.newestRead().mod < after.Mod { // it was at a box that is ahead of this one
		err = e.newest(ctx)
	} else {
		err = e.serves()
	}
	if err != nil {
		return nil, nil, err
	}
	log, end := e.openLog()
	defer func() {
		if err != nil {
			end()
		}
	}()
	r, err = log.Reader(ctx, after)
	if errors.Is(err, stream.ErrBefore) {
		if err = e.fill(ctx, log, after); err == nil {
			r, err = log.Reader(ctx, after)
		}
	}
	switch {
	case errors.Is(err, stream.ErrBefore):
		err = errForgotten
	case errors.Is(err, stream.ErrOther):
		err = errNoSuchCommit
	}
	return r, end, err
}

// openLog returns the log of commits for one more leaf. The caller calls end when the leaf is gone; the last one drops the log.
func (e *Engine) openLog() (log *stream.Log, end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := &e.feed
	if l.log == nil {
		l.log, l.readers = l.newLog(stream.Position{Mod: e.read.mod, ID: e.read.ID}), 0
	}
	log = l.log
	l.readers++
	return log, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if l.log != log {
			return // it was dropped
		}
		if l.readers--; l.readers == 0 {
			l.drop()
		}
	}
}

// fillTimeout is the timeout of reading commits from etcd's history.
const fillTimeout = 20 * time.Second

// fill prepends to a log the commits between a position and the beginning of the log, read from the history of etcd.
func (e *Engine) fill(ctx context.Context, log *stream.Log, after stream.Position) error {
	e.filling.Lock() // leaves of a core box that went away come together, from the same position
	defer e.filling.Unlock()
	until := log.Begin()
	if until.Mod <= after.Mod {
		return nil
	}
	was, _, err := e.origin.head(ctx, after.Mod)
	switch {
	case isCompacted(err):
		return errForgotten
	case err != nil:
		return err
	case was == nil || was.ID != after.ID:
		return errNoSuchCommit
	}
	older := e.feed.newLog(after)
	defer older.Close(errDropped)
	if err := e.history(ctx, after.Mod+1, until.Mod, older); err != nil {
		return err
	}
	older.Seal()
	if older.Begin() != after {
		return errForgotten
	}
	err = log.Prepend(older)
	if errors.Is(err, stream.ErrBefore) {
		return errForgotten
	}
	return err
}

// errComplete ends the reading of the history at the last commit that is wanted.
var errComplete = errors.New("the history is complete")

// history appends to a log the commits from one etcd revision until another, read from the history of etcd.
func (e *Engine) history(ctx context.Context, from, until int64, log *stream.Log) error {
	ctx, cancel := context.WithTimeout(ctx, fillTimeout)
	defer cancel()
	err := atEtcd{&e.member}.follow(ctx, nil, from-1, func(it *transaction) (err error) {
		if it.settings != nil {
			log.Add(&stream.Commit{Kind: stream.Settings, Head: it.settings}, "")
		}
		h := it.head
		if h == nil {
			return nil
		}
		if h.Bundle != "" {
			if it.note, it.ops, err = e.readBundle(ctx, h, h.mod); err != nil {
				return err
			}
		}
		of := leafFeed{log: log}
		of.add(h, it.ops, it.note)
		if h.mod >= until {
			return errComplete
		}
		return nil
	})
	switch {
	case isCompacted(err):
		return errForgotten
	case errors.Is(err, errComplete):
		return nil
	case err != nil:
		return err
	}
	return ctx.Err()
}

// openSnapshot returns all objects, encoded for leaves, as of a head with a modification revision of least or more. The caller calls end.
func (e *Engine) openSnapshot(ctx context.Context, least int64) (w *snapshot, end func(), err error) {
	if err := e.newest(ctx); err != nil {
		return nil, nil, err
	}
	e.mu.Lock()
	w = e.snapshot
	mine := w == nil
	if !mine {
		select {
		case <-w.ready:
			mine = w.err != nil || w.mod < least
		default:
		}
	}
	if mine {
		w = &snapshot{ready: make(chan struct{})}
		e.snapshot = w
	}
	w.readers++
	e.mu.Unlock()
	end = func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if w.readers--; w.readers == 0 && e.snapshot == w {
			e.snapshot = nil
		}
	}
	if mine {
		w.mod, w.data, w.err = e.replica.pack()
		close(w.ready)
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		end()
		return nil, nil, ctx.Err()
	}
	if err = w.err; err == nil && w.mod < least {
		err = errors.New("the replica of this box is behind: its disk may be full")
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return w, end, nil
}

// The requests of a leaf to a core box:
//
//	GET  /svcctl/v1/commits?after=MOD&id=ID  the commits after one, as a stream without end (package stream)
//	GET  /svcctl/v1/commits/head[?at=MOD]    the settings of the fleet, and the newest head, or the one of then
//	GET  /svcctl/v1/commits/state?least=MOD  all objects, as a stream
//	GET  /svcctl/v1/commits/boxes            the reports of all boxes, and the readers of sources
//	POST /svcctl/v1/commits/report           the report of the leaf
//
// An error is a Status of Kubernetes; of 503 its details name the state of the core box.

// Commits returns the HTTP handler for the requests of leaves. box returns the name of the leaf that sent a request; if it is "", the request may
// come from any leaf.
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

// packed writes the headers of an answer in the gzip encoding of package stream.
func packed(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
}

// answer writes v as JSON to a leaf. If err is not nil, it writes an HTTP error status instead, by which the leaf recognizes the error.
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
