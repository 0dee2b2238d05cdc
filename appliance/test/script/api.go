package script

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
)

// groups are the paths of kinds that are not below /api/v1.
var groups = map[string]string{
	"endpointslices":  "/apis/discovery.k8s.io/v1",
	"gatewayclasses":  "/apis/gateway.networking.k8s.io/v1",
	"gateways":        "/apis/gateway.networking.k8s.io/v1",
	"httproutes":      "/apis/gateway.networking.k8s.io/v1",
	"listenersets":    "/apis/gateway.networking.k8s.io/v1",
	"referencegrants": "/apis/gateway.networking.k8s.io/v1",
	"tcproutes":       "/apis/gateway.networking.k8s.io/v1",
	"tlsroutes":       "/apis/gateway.networking.k8s.io/v1",
	"udproutes":       "/apis/gateway.networking.k8s.io/v1",
	"leases":          "/apis/coordination.k8s.io/v1",
}

// clusterWide are kinds without a namespace.
var clusterWide = []string{"namespaces", "nodes"}

// pathOf turns "services/web?dryRun=All" into a path of the API in namespace default; what
// begins with a slash is one already.
func pathOf(resource string) string {
	if strings.HasPrefix(resource, "/") {
		return resource
	}
	kind, _, _ := strings.Cut(resource, "/")
	kind, _, _ = strings.Cut(kind, "?")
	group := groups[kind]
	if group == "" {
		group = "/api/v1"
	}
	if slices.Contains(clusterWide, kind) {
		return group + "/" + resource
	}
	return group + "/namespaces/default/" + resource
}

// request asks the API over its socket. The caller closes the body.
func (s *Session) request(ctx context.Context, method, resource, contentType, accept string, body []byte) (*http.Response, error) {
	socket := s.Box().Socket()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	r, err := http.NewRequestWithContext(ctx, method, "http://svcctl"+pathOf(resource), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	r.Header.Set("Accept", accept)
	return client.Do(r)
}

// get reads a JSON answer.
func (s *Session) get(resource, accept string, into any) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := s.request(ctx, "GET", resource, "", accept, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", resource, response.Status, body)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}

// api: api METHOD RESOURCE [SECTION] -> CODE sends a request and prints the answer, indented.
// METHOD is also MERGE (a merge patch) or APPLY (a server-side apply).
func (s *Session) api(args []string) error {
	before, after, err := arrow(args)
	if err != nil || len(before) < 2 || len(before) > 3 || len(after) != 1 {
		return usage("api METHOD RESOURCE [SECTION] -> CODE")
	}
	method, contentType := before[0], "application/yaml"
	switch method {
	case "MERGE":
		method, contentType = "PATCH", "application/merge-patch+json"
	case "APPLY":
		method, contentType = "PATCH", "application/apply-patch+yaml"
	}
	var body []byte
	if len(before) == 3 {
		body = []byte(s.File(before[2]))
	} else {
		contentType = ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := s.request(ctx, method, before[1], contentType, "application/json", body)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var indented bytes.Buffer
	if json.Indent(&indented, answer, "", "  ") == nil {
		answer = indented.Bytes()
	}
	s.Printf("%s\n", answer)
	if strconv.Itoa(response.StatusCode) != after[0] {
		return fmt.Errorf("%s %s: %s, want %s", before[0], before[1], response.Status, after[0])
	}
	return nil
}

// table is the API's Table of a list.
type table struct {
	ColumnDefinitions []struct {
		Name     string
		Priority int
	}
	Rows []struct{ Cells []any }
}

// objects: objects RESOURCE prints the API's table of a list, without ages.
func (s *Session) objects(args []string) error {
	if len(args) != 1 && (len(args) != 3 || args[1] != "->") {
		return usage("objects RESOURCE [-> REGEXP]")
	}
	var list table
	if err := s.get(args[0], "application/json;as=Table;v=v1;g=meta.k8s.io", &list); err != nil {
		return err
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(cell func(i int) string) {
		var cells []string
		for i, c := range list.ColumnDefinitions {
			if c.Priority == 0 && c.Name != "Age" {
				cells = append(cells, cell(i))
			}
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	row(func(i int) string { return strings.ToUpper(list.ColumnDefinitions[i].Name) })
	for _, r := range list.Rows {
		row(func(i int) string { return fmt.Sprint(r.Cells[i]) })
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(args) == 3 {
		if want, err := regexp.Compile(args[2]); err != nil || !want.MatchString(b.String()) {
			return fmt.Errorf("objects %s: got\n%swant a match of %s (%v)", args[0], b.String(), args[2], err)
		}
	}
	for line := range strings.Lines(b.String()) {
		s.Printf("%s\n", strings.TrimRight(line, " \n"))
	}
	return nil
}

// problem is one of those that the status lists.
type problem struct {
	Object, File, Field, Reason, Message, Severity string
	Line                                           int
}

// problems: problems prints what the status says is wrong, sorted; with expressions, each has
// to match a line; "-> none" wants none.
func (s *Session) problems(args []string) error {
	var status struct{ Problems []problem }
	if err := s.get("/svcctl/v1/status", "application/json", &status); err != nil {
		return err
	}
	var lines []string
	for _, p := range status.Problems {
		if p.Reason == "Polling" { // other programs of this machine have all inotify instances
			continue
		}
		file := ""
		if p.File != "" {
			file = fmt.Sprintf(" %s:%d", path.Base(p.File), p.Line)
		}
		lines = append(lines, fmt.Sprintf("%s%s %s %s %s: %s", p.Severity, file, p.Object, p.Field, p.Reason, p.Message))
	}
	slices.Sort(lines)
	text := strings.Join(lines, "\n")
	s.Printf("%s\n", text)
	if len(args) > 0 && args[0] == "->" {
		if len(lines) > 0 {
			return errors.New("there are problems:\n" + text)
		}
		return nil
	}
	for _, arg := range args {
		expression, err := regexp.Compile("(?m)" + arg)
		if err != nil {
			return err
		}
		if !expression.MatchString(text) {
			return fmt.Errorf("no problem matches %s in\n%s", arg, text)
		}
	}
	return nil
}

// watch is a watch under way: what it was told so far.
type watch struct {
	cancel context.CancelFunc
	mu     sync.Mutex
	events []string
	ended  error
	more   chan struct{} // has an element after a new event
	read   int           // events that the script has compared
}

// watch: watch NAME RESOURCE begins to watch from what is there now.
func (s *Session) watch(args []string) error {
	if len(args) != 2 {
		return usage("watch NAME RESOURCE")
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []struct {
			Metadata struct{ UID, ResourceVersion string }
		}
	}
	if err := s.get(args[1], "application/json", &list); err != nil {
		return err
	}
	separator := "?"
	if strings.Contains(args[1], "?") {
		separator = "&"
	}
	ctx, cancel := context.WithCancel(context.Background())
	response, err := s.request(ctx, "GET", args[1]+separator+"watch=true&resourceVersion="+list.Metadata.ResourceVersion, "", "application/json", nil)
	if err != nil {
		cancel()
		return err
	}
	w := &watch{cancel: cancel, more: make(chan struct{}, 1)}
	s.watches[args[0]] = w
	seen := map[string]bool{} // versions: an object comes with the same one again when its conditions change
	for _, o := range list.Items {
		seen[o.Metadata.UID+" "+o.Metadata.ResourceVersion] = true
	}
	go w.follow(response.Body, seen)
	return nil
}

func (w *watch) follow(body io.ReadCloser, seen map[string]bool) {
	defer body.Close()
	decoder := json.NewDecoder(bufio.NewReader(body))
	for {
		var event struct {
			Type   string
			Object struct {
				Metadata struct{ Name, UID, ResourceVersion string }
			}
		}
		err := decoder.Decode(&event)
		version := event.Object.Metadata.UID + " " + event.Object.Metadata.ResourceVersion
		if err == nil && event.Type == "MODIFIED" && seen[version] {
			continue
		}
		seen[version] = true
		w.mu.Lock()
		if err != nil {
			w.ended = err
		} else {
			w.events = append(w.events, event.Type+" "+event.Object.Metadata.Name)
		}
		w.mu.Unlock()
		select {
		case w.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// events: events NAME -> EVENT NAME, ... waits for as many events as are named, from where the
// last look ended, and compares them.
func (s *Session) events(args []string) error {
	before, after, err := arrow(args)
	if err != nil || len(before) != 1 || s.watches[before[0]] == nil {
		return usage("events NAME -> EVENT NAME, ... after watch NAME RESOURCE")
	}
	w := s.watches[before[0]]
	want := strings.Split(strings.Join(after, " "), ", ")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		w.mu.Lock()
		got, ended := slices.Clone(w.events[w.read:]), w.ended
		w.mu.Unlock()
		if len(got) >= len(want) {
			if !slices.Equal(got, want) {
				return fmt.Errorf("events %q, want %q", got, want)
			}
			w.read += len(got)
			return nil
		}
		if ended != nil {
			return fmt.Errorf("the watch ended after events %q: %w", got, ended)
		}
		select {
		case <-w.more:
		case <-ctx.Done():
			return fmt.Errorf("events %q within %s, want %q", got, patience, want)
		}
	}
}
