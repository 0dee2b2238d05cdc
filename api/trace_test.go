package api_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api"
	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/api/wire"
)

func TestTrace(t *testing.T) {
	var asked wire.TraceQuery
	var fails error
	packets := 2
	trace := api.Stream(wire.Trace, func(_ *http.Request, q wire.TraceQuery, each func(wire.TracedPacket) error) error {
		asked = q
		for range packets {
			if err := each(wire.TracedPacket{What: "a packet"}); err != nil {
				return err
			}
		}
		return fails
	})
	remote := serveTLS(t, &backend{}, api.Config{Endpoints: []api.Endpoint{trace}})
	reader, admin := remote.token(t, auth.Reader), remote.token(t, auth.Admin)
	asks := func(token, query string, code int, says string) {
		t.Helper()
		if got, body := remote.do(t, token, http.MethodGet, "/svcctl/v1/trace?"+query, ""); got != code || !strings.Contains(body, says) {
			t.Errorf("%s: %d %s, want %d and %q", query, got, body, code, says)
		}
	}
	asks(reader, "", http.StatusForbidden, "")
	asks(admin, "", http.StatusOK, `{"what":"a packet"`)
	if want := (wire.TraceQuery{Count: 5, Seconds: 30}); asked != want {
		t.Errorf("asked for %+v, want %+v", asked, want)
	}
	asks(admin, "from=203.0.113.7&to=10.96.0.10&port=80&established=true&count=3&seconds=9", http.StatusOK, "a packet")
	if asked.From.String() != "203.0.113.7/32" || asked.To.String() != "10.96.0.10" || asked.Port != 80 || asked.Protocol != "TCP" || !asked.Established || asked.Count != 3 || asked.Seconds != 9 {
		t.Errorf("asked for %+v", asked)
	}
	for query, says := range map[string]string{
		"from=me": "want an address or a prefix", "to=me": "want an address", "port=0": "from 1 to 65535", "protocol=ipx": "want TCP, UDP or SCTP",
		"count=0": "from 1 to 1000", "seconds=61": "from 1 to 60", "from=::1&to=10.0.0.1": "the other IPv6", "to=::ffff:10.0.0.1": "write an IPv4 address as such",
	} {
		asks(admin, query, http.StatusBadRequest, says)
	}
	packets, fails = 0, wire.ErrTracing
	asks(admin, "", http.StatusConflict, "another trace runs already")
	fails = errors.New("no rights")
	asks(admin, "", http.StatusServiceUnavailable, "no rights")
	fails = nil
	asks(admin, "", http.StatusOK, "")
}

// writeTimeout is one that a handshake of TLS stays within, also on a busy machine.
const writeTimeout = time.Second

// A reader that takes nothing ends its trace, as a program and as a page.
func TestStalledReadersEndTheirTrace(t *testing.T) {
	text := strings.Repeat("x", 64<<10)
	for _, protocol := range []int{1, 2} {
		for _, path := range []string{"/svcctl/v1/trace", "/dashboard/trace"} {
			t.Run(fmt.Sprintf("HTTP/%d %s", protocol, path), func(t *testing.T) {
				t.Parallel()
				ended := make(chan struct{})
				trace := api.Stream(wire.Trace, func(r *http.Request, _ wire.TraceQuery, each func(wire.TracedPacket) error) error {
					for r.Context().Err() == nil {
						_ = each(wire.TracedPacket{What: text})
					}
					close(ended)
					return nil
				})
				page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					for r.Context().Err() == nil {
						if _, err := io.WriteString(w, text); err != nil {
							break
						}
					}
					close(ended)
				})
				remote := serveTLS(t, newBackend(), api.Config{Endpoints: []api.Endpoint{trace}, Dashboard: page}, func(s *api.Server) { s.SetWriteTimeout(writeTimeout) })
				resp, err := remote.client(t, protocol).Do(remote.request(t, t.Context(), remote.token(t, auth.Admin), http.MethodGet, path, ""))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				select {
				case <-ended:
				case <-time.After(time.Minute):
					t.Fatal("the trace goes on for somebody who takes nothing")
				}
			})
		}
	}
}

// A trace is answered however long packets do not come, the first ones or later ones.
func TestTraceOutlivesTimeouts(t *testing.T) {
	for _, protocol := range []int{1, 2} {
		for _, packets := range []int{0, 2} {
			t.Run(fmt.Sprintf("HTTP/%d, %d packets", protocol, packets), func(t *testing.T) {
				t.Parallel()
				trace := api.Stream(wire.Trace, func(_ *http.Request, _ wire.TraceQuery, each func(wire.TracedPacket) error) error {
					for range packets {
						time.Sleep(writeTimeout * 3 / 2) // real time: longer than an answer may take
						if err := each(wire.TracedPacket{What: "a packet"}); err != nil {
							return err
						}
					}
					time.Sleep(writeTimeout * 3 / 2) // real time: longer than an answer may take
					return nil
				})
				remote := serveTLS(t, newBackend(), api.Config{Endpoints: []api.Endpoint{trace}}, func(s *api.Server) { s.SetWriteTimeout(writeTimeout) })
				resp, err := remote.client(t, protocol).Do(remote.request(t, t.Context(), remote.token(t, auth.Admin), http.MethodGet, "/svcctl/v1/trace", ""))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				if got := strings.Count(string(body), "a packet"); err != nil || resp.StatusCode != http.StatusOK || got != packets {
					t.Errorf("%s, %v: %d packets: %s", resp.Status, err, got, body)
				}
			})
		}
	}
}

// A client does not take half an answer for a whole one.
func Test895_an_answer_that_fails_half_way_is_cut(t *testing.T) {
	t.Parallel()
	trace := api.Stream(wire.Trace, func(_ *http.Request, _ wire.TraceQuery, each func(wire.TracedPacket) error) error {
		return errors.Join(each(wire.TracedPacket{What: "a packet"}), errors.New("the kernel took the table away"))
	})
	for _, protocol := range []int{1, 2} {
		remote := serveTLS(t, newBackend(), api.Config{Endpoints: []api.Endpoint{trace}})
		resp, err := remote.client(t, protocol).Do(remote.request(t, t.Context(), remote.token(t, auth.Admin), http.MethodGet, "/svcctl/v1/trace", ""))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), "a packet") {
			t.Errorf("HTTP/%d: %s, %v: %s", protocol, resp.Status, err, body)
		}
		_ = remote.stop()
		if !strings.Contains(remote.log.String(), "the kernel took the table away") {
			t.Errorf("HTTP/%d: the log does not have the reason: %s", protocol, remote.log)
		}
	}
}

// A page that follows packets may take longer than any other answer.
func TestTracePageOutlivesTimeouts(t *testing.T) {
	t.Parallel()
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		for range 3 {
			if _, err := io.WriteString(w, "a packet\n"); err != nil || rc.Flush() != nil {
				return
			}
			select {
			case <-r.Context().Done():
				return
			case <-time.After(writeTimeout / 2):
			}
		}
		_, _ = io.WriteString(w, "over\n")
	})
	remote := serveTLS(t, newBackend(), api.Config{Dashboard: page}, func(s *api.Server) { s.SetWriteTimeout(writeTimeout) })
	if code, body := remote.ask(t, remote.token(t, auth.Reader), "/dashboard/trace"); code != http.StatusOK || !strings.HasSuffix(body, "over\n") {
		t.Errorf("%d: %s", code, body)
	}
	if code, body := remote.do(t, "", http.MethodGet, "/dashboard/trace", ""); code != http.StatusUnauthorized || !strings.Contains(body, "show a bearer token") {
		t.Errorf("anonymous: %d %s", code, body)
	}
	refused := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<h1>no", http.StatusUnauthorized) }
	remote = serveTLS(t, newBackend(), api.Config{Dashboard: page, DashboardUnauthorized: refused})
	for token, want := range map[string]string{"": "<h1>no\n", "nonsense": "Unauthorized"} {
		if code, body := remote.ask(t, token, "/dashboard/trace"); code != http.StatusUnauthorized || !strings.Contains(body, want) || strings.Contains(body, "packet") {
			t.Errorf("token %q: %d %s", token, code, body)
		}
	}
}

// Only admins have the box connect to endpoints, by POST.
func TestProbeIsForAdmins(t *testing.T) {
	asked := ""
	probe := api.Answer(wire.Probe, func(_ *http.Request, q wire.ObjectQuery) (wire.Probes, error) {
		asked = q.Name
		return wire.Probes{Endpoints: []wire.Probed{{Protocol: "TCP", Endpoint: "10.1.2.11:8080", Why: "connection refused"}}}, nil
	})
	remote := serveTLS(t, &backend{}, api.Config{Endpoints: []api.Endpoint{probe}})
	for _, try := range []struct {
		role          auth.Role
		method, query string
		code          int
		says          string
	}{
		{auth.Reader, http.MethodPost, "name=web", http.StatusForbidden, ""},
		{auth.Nobody, http.MethodPost, "name=web", http.StatusUnauthorized, ""},
		{auth.Admin, http.MethodGet, "name=web", http.StatusMethodNotAllowed, ""},
		{auth.Admin, http.MethodPost, "name=web", http.StatusOK, `"endpoint":"10.1.2.11:8080"`},
	} {
		if code, body := remote.do(t, remote.token(t, try.role), try.method, "/svcctl/v1/probe?"+try.query, ""); code != try.code || !strings.Contains(body, try.says) {
			t.Errorf("%+v: %d %s", try, code, body)
		}
		if (asked != "") != (try.code == http.StatusOK) {
			t.Errorf("%+v: asked for %q", try, asked)
		}
	}
	if asked != "web" {
		t.Errorf("asked for %q", asked)
	}
}
