package dashboard

import (
	"bufio"
	"context"
	"iter"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"svcctl.io/svcctl/api/wire"
)

// The values of the query parameter "do" of the page of traces: follow packets, or predict the path of one. Without it the page has only
// the form.
const (
	doFollow  = "follow"
	doPredict = "predict"
)

// trace serves the page that traces packets, which only admins may read. The response is streamed, one packet at a time, so that the page needs no
// script.
func (h *handler) trace(w http.ResponseWriter, r *http.Request) {
	if !h.mayAdmin(r) {
		h.fail(w, r, http.StatusForbidden, "A trace sees the packets of all clients: it is for administrators. The page of a Service explains to readers why it does not answer, and svcctl explain does.")
		return
	}
	t := traceOf(r.URL.Query())
	if r.Method == http.MethodHead {
		t.Do = "" // the answer has no body
	}
	if t.Do == "" {
		h.show(w, r, http.StatusOK, "trace", "Trace", t)
		return
	}
	if err := wire.ReadQuery(t.values(), &t.Query); err != nil {
		t.Wrong, t.Do = err.Error(), ""
		h.show(w, r, http.StatusBadRequest, "trace", "Trace", t)
		return
	}
	t.source = h.source
	var cancel context.CancelFunc
	t.ctx, cancel = context.WithCancel(r.Context())
	defer cancel()
	t.out = &pieces{buffer: bufio.NewWriterSize(w, pieceSize), control: http.NewResponseController(w), gone: cancel}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	h.render(t.out, h.page(r, "trace", "Trace", t))
	t.out.pass()
}

// tracing is the data of the page of a trace. The template reads packets from it while the page is rendered.
type tracing struct {
	From, To, Protocol, Count, Seconds string // as entered in the form
	Established                        bool
	Do                                 string
	Wrong                              string // the error in the form; "": none
	Query                              wire.TraceQuery
	Came                               int    // packets so far
	Failed                             string // why it ended early; "": it did not

	ctx    context.Context
	source Source
	out    *pieces
}

// traceOf reads the form.
func traceOf(form url.Values) *tracing {
	t := &tracing{
		From: strings.TrimSpace(form.Get("from")), To: strings.TrimSpace(form.Get("to")), Protocol: strings.ToUpper(form.Get("protocol")),
		Count: form.Get("count"), Seconds: form.Get("seconds"), Established: form.Get("established") != "", Do: form.Get("do"),
	}
	if t.Do != "" && t.Do != doPredict {
		t.Do = doFollow
	}
	return t
}

// values returns the query of a trace. The destination is written as ADDRESS, ADDRESS:PORT or ADDRESS:PORT/PROTOCOL.
func (t *tracing) values() url.Values {
	to, protocol, _ := strings.Cut(t.To, "/")
	if protocol == "" {
		protocol = t.Protocol
	}
	values := url.Values{"from": {t.From}, "to": {to}, "protocol": {protocol}, "count": {t.Count}, "seconds": {t.Seconds}}
	if at, err := netip.ParseAddrPort(to); err == nil {
		values.Set("to", at.Addr().String())
		values.Set("port", strconv.Itoa(int(at.Port())))
	}
	if t.Established {
		values.Set("established", "true")
	}
	if t.Do == doPredict {
		values.Set("predict", "true")
	}
	return values
}

// Packets yields each traced packet with its path through the rules, as it arrives.
func (t *tracing) Packets() iter.Seq[wire.TracedPacket] {
	return func(yield func(wire.TracedPacket) bool) {
		t.out.pass() // so that the page shows that it waits
		err := t.source.Trace(t.ctx, t.Query, func(p wire.TracedPacket) {
			t.Came++
			yield(p)
			t.out.pass()
		})
		if err != nil {
			t.Failed = err.Error()
		}
	}
}

// Predicted returns the predicted path of a packet with the addresses of the form, for a trace that saw no packet. It returns nil if packets came, if
// the trace failed, or if the rules cannot be evaluated for that packet.
func (t *tracing) Predicted() (told *wire.TracedPacket) {
	q := t.Query
	q.Predict = true
	if t.Came > 0 || t.Failed != "" || t.Do != doFollow || q.Established || q.Complete() != nil {
		return nil
	}
	_ = t.source.Trace(t.ctx, q, func(p wire.TracedPacket) { told = &p }) // that none came is said already
	return told
}

// pieceSize is the size in bytes of the buffer that a streamed page is written through.
const pieceSize = 16 << 10

// pieces streams a page. It calls gone, which stops the trace, if the browser disconnects or does not read within the server's time limit.
type pieces struct {
	buffer  *bufio.Writer
	control *http.ResponseController
	gone    context.CancelFunc
}

// Write implements io.Writer. It never returns an error; it calls gone instead.
func (p *pieces) Write(b []byte) (int, error) {
	if _, err := p.buffer.Write(b); err != nil {
		p.gone()
	}
	return len(b), nil
}

// pass sends what was written so far.
func (p *pieces) pass() {
	if p.buffer.Flush() != nil || p.control.Flush() != nil {
		p.gone()
	}
}
