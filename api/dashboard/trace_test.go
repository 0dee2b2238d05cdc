package dashboard

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"svcctl.io/svcctl/api/wire"
)

// none is a trace to which no packet comes.
func none(context.Context, func(wire.TracedPacket)) error { return nil }

func TestTracePage(t *testing.T) {
	packet := wire.TracedPacket{What: "203.0.113.7:1 -> 10.96.0.10:80/TCP " + hostile,
		Lines: []wire.TraceLine{{State: wire.TraceGood, Text: hostile, Where: "prerouting -> pick-3"}, {State: wire.TraceBad, Text: "dropped"}, {State: wire.TraceWarn, Text: "silent"}, {State: wire.TraceNote, Text: "a fact"}},
		Steps: []wire.TraceStep{{Table: "inet fw", Chain: "forward", Rule: 12, Verdict: "drop"}, {Table: "inet fw", Chain: "input", Policy: true, Verdict: "accept"}}}
	s := &shown{trace: func(_ context.Context, each func(wire.TracedPacket)) error {
		each(packet)
		each(wire.TracedPacket{What: "another"})
		return nil
	}}
	h := Handler(s, everybody)
	says(t, visit(t, h, http.MethodGet, "/dashboard/trace?to=10.96.0.10:80/tcp", http.StatusOK), `value="10.96.0.10:80/tcp"`, `name="do" value="follow"`)
	visit(t, h, http.MethodHead, "/dashboard/trace?do=follow", http.StatusOK)
	if len(s.traced) > 0 {
		t.Fatalf("the form alone asks for %+v", s.traced)
	}
	text := visit(t, h, http.MethodGet, "/dashboard/trace?from=203.0.113.0/24&to=[fd00::1]:53/udp&protocol=TCP&count=3&seconds=9&established=on&do=predict", http.StatusBadRequest)
	says(t, text, "want an address", `value="[fd00::1]:53/udp"`)
	text = visit(t, h, http.MethodGet, "/dashboard/trace?from=203.0.113.0/24&to=+10.96.0.10:53/udp&protocol=TCP&count=3&seconds=9&established=on&do=follow", http.StatusOK)
	says(t, text, "2 packets: the trace is over", "✗ wrong", "▲ check", "· note", "prerouting -&gt; pick-3", "2 decisions of the kernel", "handle 12", "policy", `value="3"`, " checked")
	if strings.Contains(text, "<script>") {
		t.Errorf("the page holds what somebody sent:\n%s", text)
	}
	if q := s.traced[0]; q.From.String() != "203.0.113.0/24" || q.To.String() != "10.96.0.10" || q.Port != 53 || q.Protocol != "UDP" || !q.Established || q.Count != 3 || q.Seconds != 9 {
		t.Errorf("asked for %+v", q)
	}
	for query, why := range map[string]string{
		"to=me": "want an address", "to=10.96.0.10:0": "from 1 to 65535", "from=me": "want an address or a prefix", "protocol=ipx": "want TCP, UDP or SCTP",
		"count=1001": "from 1 to 1000", "seconds=0": "from 1 to 60", "from=10.0.0.1&to=fd00::1": "the other IPv6",
	} {
		says(t, visit(t, h, http.MethodGet, "/dashboard/trace?do=follow&"+query, http.StatusBadRequest), why, `role="alert"`)
	}
	s.trace = none
	says(t, visit(t, h, http.MethodGet, "/dashboard/trace?to=10.96.0.10:80&do=follow&seconds=2", http.StatusOK), "No such packet came in 2 s", "if a packet came", "goes to endpoint")
	says(t, visit(t, h, http.MethodGet, "/dashboard/trace?to=10.96.0.10:80&do=predict", http.StatusOK), "Prediction", "goes to endpoint")
	s.trace = func(context.Context, func(wire.TracedPacket)) error { return wire.ErrTracing }
	if text := visit(t, h, http.MethodGet, "/dashboard/trace?to=10.96.0.10:80&do=follow", http.StatusOK); strings.Contains(text, "No such packet") || strings.Contains(text, "if a packet came") {
		t.Errorf("a trace that was refused found no packet:\n%s", text)
	} else {
		says(t, text, "another trace runs already")
	}
}

// Who may not do everything is told so, and nothing is followed.
func TestTraceIsForAdmins(t *testing.T) {
	s := &shown{services: 3, trace: none}
	h := Handler(s, func(*http.Request) bool { return false })
	says(t, visit(t, h, http.MethodGet, "/dashboard/trace?do=follow", http.StatusForbidden), "for administrators", `role="alert"`)
	for _, path := range []string{"", "services/shop/web"} {
		if text := visit(t, h, http.MethodGet, "/dashboard/"+path, http.StatusOK); strings.Contains(text, "/dashboard/trace") {
			t.Errorf("/dashboard/%s leads a reader to the trace", path)
		}
	}
	if len(s.traced) > 0 {
		t.Errorf("asked for %+v", s.traced)
	}
	says(t, visit(t, Handler(s, everybody), http.MethodGet, "/dashboard/services/shop/web", http.StatusOK), `href="/dashboard/trace?to=10.96.0.10%3a80%2ftcp"`)
}

// A packet is on the page while the trace goes on, and a browser that leaves ends the trace.
func TestTracePageComesInPieces(t *testing.T) {
	ended := make(chan struct{})
	s := &shown{trace: func(ctx context.Context, each func(wire.TracedPacket)) error {
		each(wire.TracedPacket{What: "the first packet"})
		<-ctx.Done()
		close(ended)
		return nil
	}}
	server := httptest.NewServer(Handler(s, everybody))
	defer server.Close()
	resp, err := http.Get(server.URL + "/dashboard/trace?do=follow")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	var text strings.Builder
	for !strings.Contains(text.String(), "the first packet") {
		if !lines.Scan() {
			t.Fatalf("the page ended: %v\n%s", lines.Err(), text.String())
		}
		text.WriteString(lines.Text())
	}
	says(t, text.String(), "Waiting for 5 packets")
	_ = resp.Body.Close()
	<-ended
}
