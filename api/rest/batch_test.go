package rest

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/api/auth"
	"svcctl.io/svcctl/store/manifest"
)

const batchPath = "/svcctl/v1/apply?fieldManager=svcctl"

// batch applies a stream and gives the lines of the answer.
func (w *world) batch(path, body, mediaType string) []map[string]any {
	w.Helper()
	answer := w.sends("POST", path, body, "Content-Type: "+mediaType)
	if answer.Code != http.StatusOK {
		w.Fatalf("%d %s", answer.Code, answer.Body)
	}
	var lines []map[string]any
	for line := range bytes.Lines(answer.Body.Bytes()) {
		lines = append(lines, decoded(w, line))
	}
	return lines
}

// outcomes are the results of the lines, and what was refused for.
func outcomes(lines []map[string]any) string {
	var all []string
	for _, line := range lines {
		text := fmt.Sprint(line["result"])
		if line["status"] != nil {
			text += fmt.Sprintf("(%v)", at(line, "status", "code"))
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func applied1(name, selector string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":%q},"spec":{"ports":[{"port":80}],"selector":{"app":%q}}}`, name, selector)
}

func TestBatch(t *testing.T) {
	for name, c := range map[string]struct{ mediaType, body, want string }{
		"lines":     {typeLines, applied1("a", "a") + "\n" + applied1("b", "b") + "\n", "created created"},
		"array":     {typeJSON, "[" + applied1("a", "a") + "," + applied1("b", "b") + "]", "created created"},
		"list":      {typeJSON, `{"kind":"List","apiVersion":"v1","items":[` + applied1("a", "a") + "," + applied1("b", "b") + `]}`, "created created"},
		"yaml":      {typeYAML, "# two\n---\n" + webFile + "---\n" + strings.Replace(webFile, "name: web", "name: db", 1), "created created"},
		"yaml list": {typeYAML, "kind: List\napiVersion: v1\nitems:\n- " + applied1("a", "a") + "\n", "created"},
		"json yaml": {typeYAML, "\n " + applied1("a", "a"), "created"},
		"namespace": {typeLines, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns"}}` + strings.Replace(applied1("a", "a"), `"name":"a"`, `"name":"a","namespace":"ns"`, 1), "created created"},
		"same name": {typeLines, applied1("a", "a") + applied1("a", "b") + applied1("a", "b"), "created configured unchanged"},
		"refused":   {typeLines, applied1("a", "a") + applied1("B", "b") + `{"kind":"X","apiVersion":"v1"}` + `[1]` + `{"kind":"Service","apiVersion":"v1"}` + strings.Replace(applied1("a", "a"), `"name":"a"`, `"name":"a","namespace":"none"`, 1) + applied1("c", "c"), "created refused(422) refused(404) refused(400) refused(400) refused(404) created"},
		"broken":    {typeLines, applied1("a", "a") + `{"kind":`, "created refused(400)"},
		"truncated": {typeYAML, webFile + "---\na: [", "created refused(400)"},
		"nothing":   {typeLines, "", ""},
		"review":    {typeLines, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","metadata":{"name":"x"}}`, "refused(405)"},
		"address":   {typeLines, `{"kind":"IPAddress","apiVersion":"networking.k8s.io/v1","metadata":{"name":"10.0.0.1"}}`, "refused(405)"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			lines := w.batch(batchPath, c.body, c.mediaType)
			if got := outcomes(lines); got != c.want {
				t.Errorf("%s, want %s: %v", got, c.want, lines)
			}
			if strings.Contains(c.want, "(") {
				return
			}
			before := w.store.Revision()
			again := outcomes(w.batch(batchPath, c.body, c.mediaType))
			if name != "same name" && (strings.Contains(again, "c") && !strings.Contains(again, "unchanged") || w.store.Revision() != before) {
				t.Errorf("again: %s", again)
			}
		})
	}
}

func TestBatchDryRun(t *testing.T) {
	w := newWorld(t)
	var body strings.Builder
	for i := range 2 * commitObjects {
		body.WriteString(applied1(fmt.Sprintf("s%d", i), "x"))
	}
	before := w.store.Revision()
	shown := w.batch(batchPath+"&dryRun=All", body.String(), typeLines)
	if w.store.Revision() != before {
		t.Error("a dry run has changed something")
	}
	made := w.batch(batchPath, body.String(), typeLines)
	for i := range made {
		x, y := at(shown[i], "object", "spec", "clusterIP"), at(made[i], "object", "spec", "clusterIP")
		if x != y || x == nil || shown[i]["result"] != "created" {
			t.Fatalf("%d: shown %v, made %v", i, x, y)
		}
	}
	if got := outcomes(w.batch(batchPath+"&dryRun=All", applied1("s1", "y")+applied1("s2", "x"), typeLines)); got != "configured unchanged" {
		t.Error(got)
	}
}

// What an apply puts into a namespace that it makes itself, a dry run takes, too.
func TestBatchDryRunOfNamespace(t *testing.T) {
	w := newWorld(t)
	space := `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"ns"}}`
	inside := func(name string) string {
		return strings.Replace(applied1(name, "x"), `"metadata":{`, `"metadata":{"namespace":"ns",`, 1)
	}
	body := inside("early") + applied1("other", "x") + space + inside("a") + inside("b")
	shown := w.batch(batchPath+"&dryRun=All", body, typeLines)
	if got, want := outcomes(shown), "refused(404) created created created created"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	made := w.batch(batchPath, body, typeLines)
	if outcomes(made) != outcomes(shown) {
		t.Errorf("made: %s, shown: %s", outcomes(made), outcomes(shown))
	}
	for i := range made {
		if x, y := at(shown[i], "object", "spec", "clusterIP"), at(made[i], "object", "spec", "clusterIP"); x != y {
			t.Errorf("%d: shown %v, made %v", i, x, y)
		}
	}
}

func TestBatchConflicts(t *testing.T) {
	w := newWorld(t)
	w.files(map[string]string{"web.yaml": webFile})
	w.does(http.StatusCreated, "PATCH", servicesPath+"/a?fieldManager=other", applied1("a", "a"), asApply)
	lines := w.batch(batchPath, applied1("a", "b")+applied1("web", "x"), typeLines)
	if got := outcomes(lines); got != "refused(409) refused(409)" || !strings.Contains(fmt.Sprint(at(lines[1], "status", "message")), "web.yaml:1") {
		t.Error(got, lines)
	}
	lines = w.batch(batchPath+"&force=true", applied1("a", "b")+applied1("web", "x"), typeLines)
	if got := outcomes(lines); got != "configured refused(409)" {
		t.Error(got, lines)
	}
}

func TestBatchRefuses(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		method, path, header string
		code                 int
	}{
		"method":     {"GET", batchPath, "", 405},
		"manager":    {"POST", "/svcctl/v1/apply", "", 422},
		"media type": {"POST", batchPath, "Content-Type: text/plain", 415},
		"dry run":    {"POST", batchPath + "&dryRun=x", "", 422},
	} {
		headers := []string{}
		if c.header != "" {
			headers = append(headers, c.header)
		}
		if answer := w.sends(c.method, c.path, "", headers...); answer.Code != c.code {
			t.Errorf("%s: %d %s", name, answer.Code, answer.Body)
		}
	}
	w.user = auth.User{Name: "reader", Role: auth.Reader}
	if answer := w.sends("POST", batchPath, ""); answer.Code != http.StatusForbidden {
		t.Error(answer.Code)
	}
}

// manyServices is a stream of so many Services.
func manyServices(n int) string {
	var body strings.Builder
	for i := range n {
		body.WriteString(applied1(fmt.Sprintf("s%05d", i), fmt.Sprint(i)))
		body.WriteByte('\n')
	}
	return body.String()
}

func TestBatchOfManyServices(t *testing.T) {
	w := newWorld(t)
	const n = 2*commitObjects + 1
	body := manyServices(n)
	for _, want := range []string{"created", "unchanged"} {
		before := w.engine.Commits()
		lines := w.batch(batchPath, body, typeLines)
		if len(lines) != n {
			t.Fatalf("%d lines", len(lines))
		}
		for i, line := range lines {
			if line["result"] != want || at(line, "object", "metadata", "name") != fmt.Sprintf("s%05d", i) {
				t.Fatalf("%d: %v", i, line)
			}
		}
		if got := w.engine.Commits() - before; want == "created" && got != 3 || want == "unchanged" && got != 0 {
			t.Errorf("%s in %d commits", want, got)
		}
	}
}

// What 10,000 Services cost that are new, and when they are applied again.
func BenchmarkBatch(b *testing.B) {
	const n = 10_000
	body := manyServices(n)
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b)
		b.StartTimer()
		for _, what := range []string{"new", "same"} {
			began := time.Now()
			if answer := w.sends("POST", batchPath, body, "Content-Type: "+typeLines); answer.Code != http.StatusOK {
				b.Fatal(answer)
			}
			b.ReportMetric(time.Since(began).Seconds(), "s/"+what)
		}
	}
}

// Over a connection, lines come while the body is still sent.
func TestBatchOverConnections(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		w := newWorld(t)
		server := httptest.NewUnstartedServer(w.handler)
		server.EnableHTTP2 = http2
		server.StartTLS()
		defer server.Close()
		const n = 3 * commitObjects
		answer, err := server.Client().Post(server.URL+batchPath, typeLines, strings.NewReader(manyServices(n)))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		got := 0
		for ; lines.Scan(); got++ {
			if !strings.HasPrefix(lines.Text(), `{"result":"created"`) {
				t.Fatal(lines.Text())
			}
		}
		answer.Body.Close()
		if got != n || answer.ProtoMajor == 2 != http2 {
			t.Errorf("%s: %d lines", answer.Proto, got)
		}
	}
}

// A body that is too long for a batch ends it, and what came before it counts.
// TestBatchGoesOnBehindALargeObject: an object that is too large, or too deep, stops no other.
func TestBatchGoesOnBehindALargeObject(t *testing.T) {
	w := newWorld(t)
	large := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"large"},"data":{"a":"` + strings.Repeat("x", 4<<20) + `"}}`
	deep := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"deep"},"data":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`
	list := `{"apiVersion":"v1","kind":"List","items":[` + large + "," + applied1("c", "c") + `]}`
	answers := w.batch(batchPath, applied1("a", "a")+large+deep+applied1("b", "b")+list+applied1("d", "d"), typeLines)
	if got := outcomes(answers); got != "created refused(400) refused(400) created refused(400) created created" {
		t.Error(got)
	}
}

func TestBatchIsLimited(t *testing.T) {
	w := newWorld(t)
	long := applied1("a", "a") + `{"a":"` + strings.Repeat("x", batchLimit) + `"}`
	if got := outcomes(w.batch(batchPath, long, typeLines)); got != "created refused(413)" {
		t.Error(got)
	}
	if got := outcomes(w.batch(batchPath, webFile+"---\na: "+strings.Repeat("x", yamlLimit), typeYAML)); got != "created refused(413)" {
		t.Error(got)
	}
}

// The first example of docs/announcing.md is applied over the API as it stands, and read from a file too: the Namespace
// of MetalLB's objects needs no document.
func TestPageOfPoolsIsApplied(t *testing.T) {
	page, err := os.ReadFile("../../docs/announcing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(page), "```yaml\napiVersion: metallb.io/")
	example, _, _ = strings.Cut("apiVersion: metallb.io/"+example, "```")
	w := newWorld(t)
	lines := w.batch(batchPath, example, typeYAML)
	if got := outcomes(lines); got != "created created" {
		t.Errorf("%s\n%s: %v", example, got, lines)
	}
	w.get("/apis/metallb.io/v1beta1/namespaces/metallb-system/ipaddresspools/lan")
	// Other namespaces have to be there, and one that goes takes nothing.
	elsewhere := strings.ReplaceAll(example, "metallb-system", "elsewhere")
	if got := outcomes(w.batch(batchPath, elsewhere, typeYAML)); got != "refused(404) refused(404)" {
		t.Errorf("in a namespace that is not there: %s", got)
	}
	if file := manifest.Decode("a.yaml", []byte(example), manifest.DefaultLimits()); len(file.Problems) > 0 || len(file.Documents) != 2 {
		t.Errorf("in a file: %v", file.Problems)
	}
}

// A bool or a number where an annotation or label is a text is answered with its key and its place, in the words of files.
func TestAnnotationsThatAreNoText(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ method, path, body, mediaType string }{
		{"POST", servicesPath, `{"metadata":{"name":"a","annotations":{"example.com/a":true}},"spec":{"ports":[{"port":80}]}}`, typeJSON},
		{"PATCH", servicesPath + "/a?fieldManager=m", "apiVersion: v1\nkind: Service\nmetadata: {name: a, annotations: {example.com/a: true}}\nspec: {ports: [{port: 80}]}\n", "application/apply-patch+yaml"},
	} {
		answer := w.sends(c.method, c.path, c.body, "Content-Type: "+c.mediaType)
		status := decoded(w, answer.Body.Bytes())
		const want = `metadata.annotations[example.com/a]: expected a text, got the bool true; quote it: "true"`
		if answer.Code != http.StatusBadRequest || !strings.Contains(fmt.Sprint(status["message"]), want) || !strings.Contains(fmt.Sprint(at(status, "details", "causes")), "field:metadata.annotations[example.com/a]") {
			t.Errorf("%s: %d %v", c.method, answer.Code, status)
		}
	}
}

// TestBatchAnswersHaveConditions compares what a batch and a dry run of it answer with a read: without the conditions of the Service, `svcctl diff`
// of a Service that another manager or a file made would print them as removed.
func TestBatchAnswersHaveConditions(t *testing.T) {
	w := newWorld(t)
	w.server.conditions = &judged{}
	for _, query := range []string{"fieldManager=other", "fieldManager=other&dryRun=All", "fieldManager=third&dryRun=All", "fieldManager=svcctl"} {
		for _, line := range w.batch(strings.Replace(batchPath, "fieldManager=svcctl", query, 1), applied1("a", "a"), typeLines) {
			if got, want := fmt.Sprint(at(line, "object", "status")), fmt.Sprint(w.get(servicesPath + "/a")["status"]); got != want || !strings.Contains(got, "Ready") {
				t.Errorf("%s: the batch answers the status %s, a read %s", query, got, want)
			}
		}
	}
}
