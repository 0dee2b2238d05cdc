package client_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
)

// says answers every request with a body.
func says(code int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

func TestEach(t *testing.T) {
	for name, tt := range map[string]struct {
		body, names, err string
	}{
		"list":          {`{"kind":"ServiceList","items":[{"n":"a"},{"n":"b"}],"metadata":{"resourceVersion":"7"}}`, "ab 7", ""},
		"metadata last": {`{"metadata":{"resourceVersion":"7"},"items":[{"n":"a"}]}`, "a 7", ""},
		"empty":         {`{"items":[],"metadata":{"resourceVersion":"7"}}`, " 7", ""},
		"null":          {`{"items":null,"metadata":{"resourceVersion":"7"}}`, " 7", ""},
		"cut off":       {`{"items":[{"n":"a"},{"n":`, "a ", "no answer from the appliance"},
		"no list":       {`{"items":7}`, " ", "a list is missing"},
		"text":          {`hello`, " ", "is it an svcctl of the same version that serves there?"},
		"other shape":   {`[1]`, " ", "{ is missing"},
	} {
		c := client.New(serve(t, says(200, tt.body)))
		names := ""
		version, err := c.Each(t.Context(), "/api/v1/services", nil, func(raw json.RawMessage) error {
			var o struct{ N string }
			names += o.N
			err := json.Unmarshal(raw, &o)
			names += o.N
			return err
		})
		if got := names + " " + version; got != tt.names || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	// An error of the caller's own comes back as it is.
	own := errors.New("own")
	c := client.New(serve(t, says(200, `{"items":[1,2]}`)))
	if _, err := c.Each(t.Context(), "/x", nil, func(json.RawMessage) error { return own }); err != own {
		t.Errorf("%v", err)
	}
}

func TestFailuresAndWarnings(t *testing.T) {
	c := client.New(serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Warning", `299 - "first \"quoted\""`)
		w.Header().Add("Warning", `299 - "second"`)
		w.Header().Add("Warning", `nonsense`)
		w.WriteHeader(422)
		_, _ = io.WriteString(w, `{"kind":"Status","code":422,"reason":"Invalid","message":"no","details":{"causes":[{"field":"spec.type","message":"bad"}]}}`)
	})))
	var warnings []string
	c.Warned = func(text string) { warnings = append(warnings, text) }
	_, err := c.Get(t.Context(), "/x")
	f, ok := errors.AsType[*wire.Failure](err)
	if !ok || f.Reason != "Invalid" || f.Details == nil || f.Details.Causes[0].Field != "spec.type" {
		t.Errorf("%#v", err)
	}
	if got := strings.Join(warnings, "|"); got != `first "quoted"|second` {
		t.Errorf("%s", got)
	}
}

// TestChanges sees the requests that writes make.
func TestChanges(t *testing.T) {
	var got string
	c := client.New(serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = fmt.Sprintf("%s %s %s %s", r.Method, r.URL, r.Header.Get("Content-Type"), body)
		_, _ = io.WriteString(w, `{"metadata":{"name":"x"}}`)
	})))
	if _, err := c.Patch(t.Context(), "/p", url.Values{"a": {"b"}}, client.MergePatch, []byte("{}")); err != nil || got != "PATCH /p?a=b application/merge-patch+json {}" {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := c.Delete(t.Context(), "/p", url.Values{"dryRun": {"All"}}, "u"); err != nil ||
		got != `DELETE /p?dryRun=All application/json {"apiVersion":"v1","dryRun":["All"],"kind":"DeleteOptions","preconditions":{"uid":"u"},"propagationPolicy":"Background"}` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestApply(t *testing.T) {
	var lines int
	c := client.New(serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		lines = strings.Count(string(body), "\n")
		if r.URL.RawQuery != "dryRun=All&fieldManager=m&fieldValidation=Strict&force=true" {
			t.Errorf("%s", r.URL.RawQuery)
		}
		_, _ = io.WriteString(w, `{"result":"created","object":{"metadata":{"resourceVersion":"12345678901234567890"}}}`+"\n"+`{"result":"refused","status":{"message":"no"}}`+"\n")
	})))
	var results []string
	o := client.ApplyOptions{Manager: "m", Force: true, DryRun: true}
	err := c.Apply(t.Context(), o, []json.RawMessage{[]byte("{}"), []byte("{}"), []byte("{}")}, func(i int, r wire.Applied) error {
		results = append(results, fmt.Sprint(i, r.Result))
		return nil
	})
	if got := strings.Join(results, " "); got != "0created 1refused" || lines != 3 {
		t.Errorf("%s after %d lines", got, lines)
	}
	if err == nil || !strings.HasPrefix(err.Error(), "after 2 of 3 objects: no answer") {
		t.Errorf("%v", err)
	}
}

func TestWatch(t *testing.T) {
	const stream = `{"type":"ADDED","object":{"n":"a"}}
{"type":"BOOKMARK","object":{"n":"b"}}
`
	watch := func(body string) (string, error) {
		c := client.New(serve(t, says(200, body)))
		got := ""
		err := c.Watch(t.Context(), "/w", url.Values{"resourceVersion": {"7"}}, func(change client.Change) error {
			got += change.Type + " " + change.Object["n"].(string) + ";"
			return nil
		})
		return got, err
	}
	if got, err := watch(stream); got != "ADDED a;BOOKMARK b;" || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	got, err := watch(stream + `{"type":"ERROR","object":{"kind":"Status","reason":"Expired","code":410,"message":"too old"}}`)
	if f, ok := errors.AsType[*wire.Failure](err); got != "ADDED a;BOOKMARK b;" || !ok || f.Reason != wire.ReasonExpired {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := watch(stream + `{"type":"ADD`); err == nil {
		t.Error("a stream that is cut off is taken for its end")
	}
}

// TestWatchEnds: a watch ends with its context, also while nothing comes.
func TestWatchEnds(t *testing.T) {
	c := client.New(serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // real time: nothing comes meanwhile
	defer cancel()
	if err := c.Watch(ctx, "/w", nil, func(client.Change) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestTable(t *testing.T) {
	c := client.New(serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Accept"), "application/json;as=Table;") {
			t.Errorf("Accept: %s", r.Header.Get("Accept"))
		}
		_, _ = io.WriteString(w, `{"kind":"Table","columnDefinitions":[{"name":"Name","priority":0}],"rows":[{"cells":["a"],"object":{"x":1}}],"metadata":{"resourceVersion":"7"}}`)
	})))
	table, err := c.Table(t.Context(), "/t", nil)
	if err != nil || table.Columns[0].Name != "Name" || table.Rows[0].Cells[0] != "a" || table.Metadata.ResourceVersion != "7" {
		t.Errorf("%+v, %v", table, err)
	}
}

// TestRemote talks to a server with TLS and a token.
func TestRemote(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			says(401, `{"kind":"Status","code":401,"reason":"Unauthorized","message":"who are you?"}`)(w, r)
			return
		}
		says(200, `{"nodeName":"gw1"}`)(w, r)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	for name, tt := range map[string]struct {
		server client.Server
		err    string
	}{
		"well":      {client.Server{URL: srv.URL, Token: "secret\n", CA: ca}, ""},
		"bare":      {client.Server{URL: srv.Listener.Addr().String(), Token: "secret", CA: ca}, ""},
		"no token":  {client.Server{URL: srv.URL, CA: ca}, "who are you?"},
		"other CA":  {client.Server{URL: srv.URL, Token: "secret"}, "give its CA with --ca"},
		"not there": {client.Server{URL: "127.0.0.1:1"}, "is `svcctl serve --listen` running there?"},
	} {
		c, err := client.Remote(tt.server)
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.Status(t.Context())
		if tt.err == "" && (err != nil || s.NodeName != "gw1") || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
}

// TestBusy: a server that says when to come again is asked again, with the same body.
func TestBusy(t *testing.T) {
	var bodies []string
	c := client.New(serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bodies = append(bodies, string(body)); len(bodies) < 2 {
			says(429, `{"kind":"Status","code":429,"reason":"TooManyRequests","message":"later","details":{"retryAfterSeconds":1}}`)(w, r)
			return
		}
		says(200, `{"metadata":{}}`)(w, r)
	})))
	if _, err := c.Patch(t.Context(), "/p", nil, client.MergePatch, []byte("{}")); err != nil || strings.Join(bodies, " ") != "{} {}" {
		t.Errorf("%q, %v", bodies, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond) // real time: the next try would come later
	defer cancel()
	bodies = nil
	if _, err := c.Get(ctx, "/p"); err == nil || len(bodies) > 1 {
		t.Errorf("after its end it was asked %d times: %v", len(bodies), err)
	}
}
