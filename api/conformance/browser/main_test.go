package browser

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"svcctl.io/svcctl/api/conformance/served"
)

func TestMain(m *testing.M) { served.Main(m) }

// hostile is text that runs, or leaves its place, where it is not escaped.
const hostile = `"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`

// longName is a name as long as one may be, longText text that has no place to break, and rightToLeft text that would turn its line.
var (
	longName = strings.Repeat("very-long-name-", 4) + "abc"
	longText = strings.Repeat("x", 300)
)

const rightToLeft = "\u202e\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 abc"

// service is a Service with endpoints in YAML; "" for none.
func service(namespace, name, vip string, annotations map[string]string, endpoints ...string) string {
	text := "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: " + name + "\n  namespace: " + namespace + "\n"
	if len(annotations) > 0 {
		text += "  annotations:\n"
	}
	for key, value := range annotations {
		text += "    " + key + ": '" + strings.ReplaceAll(value, "'", "''") + "'\n"
	}
	text += "spec: {clusterIP: " + vip + ", ports: [{name: http, port: 80}]}\n"
	if len(endpoints) == 0 {
		return text
	}
	text += "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: " + name[:min(len(name), 50)] + "-1, namespace: " + namespace + ", labels: {kubernetes.io/service-name: " + name + "}}\n" +
		"addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints:\n"
	for _, at := range endpoints {
		text += "- addresses: [" + at + "]\n"
	}
	return text
}

// checked has endpoints asked.
var checked = map[string]string{"svcctl.io/health-check": "tcp", "svcctl.io/health-check-interval": "1s"}

// The addresses of Services, and of the endpoints that listen at the start.
const (
	vip      = "172.30.0.10:80"
	silent   = "172.30.0.11:80"
	refusing = "172.30.0.12:80"
)

var listening = []string{"192.0.2.11", "192.0.2.12", "192.0.2.14"}

// few are Services of every kind that pages have a place for.
func few() map[string]string {
	hostileNotes := map[string]string{"note": hostile, "long": longText, "right-to-left": rightToLeft, "svcctl.io/weights": "192.0.2.11=3"}
	maps.Copy(hostileNotes, checked)
	return map[string]string{
		"web.yaml": service("shop", "web", "172.30.0.10", hostileNotes, "192.0.2.11", "192.0.2.12", "192.0.2.13", "192.0.2.14") +
			service("auth", "token", "172.30.0.13", checked, "192.0.2.12", "192.0.2.13"),
		"dark.yaml":  service("search", "dark", "172.30.0.11", nil, "192.0.2.77"),
		"empty.yaml": service("billing", "invoices", "172.30.0.12", nil),
		"long.yaml":  service("media", longName, "172.30.0.14", nil, "192.0.2.14"),
		"<img src=x onerror='window.hacked=1'>.yaml":                  "apiVersion: v1\nkind: Service\nmetadata: {name: bad, labels: {x: '<script>window.hacked=1</script>'}}\nspec: {ports: [{port: 99999}]}\n",
		strings.Repeat("long-file-name-", 13) + rightToLeft + ".yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: also-bad}\nspec: {type: '" + rightToLeft + longText + "', ports: [{port: 80}]}\n",
	}
}

// many are few, and so many others.
func many(n int) map[string]string {
	all := few()
	var list strings.Builder
	for i := range n {
		list.WriteString(service([]string{"default", "infra", "iot", "mail"}[i%4], fmt.Sprintf("s%04d", i), fmt.Sprintf("172.30.%d.%d", 1+i/250, i%250+1), nil, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)))
	}
	all["many.yaml"] = list.String()
	return all
}

// write writes a file of manifests.
func write(t *testing.T, a *served.Appliance, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(a.Manifests, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newAppliance serves manifests, and endpoints listen. All tests share a network namespace: rules and connections of the test
// before, which would be problems of this one, are removed.
func newAppliance(t *testing.T, manifests map[string]string) *served.Appliance {
	t.Helper()
	for _, args := range [][]string{
		{"nft", "add table ip svcctl; delete table ip svcctl; add table ip6 svcctl; delete table ip6 svcctl"},
		{"conntrack", "-F"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	a := served.New(t)
	for name, text := range manifests {
		write(t, a, name, text)
	}
	for _, at := range listening {
		listen(t, at)
	}
	listen(t, "192.0.2.13")() // it refuses connections
	a.Start()
	return a
}

// listen has an endpoint take connections, until end is called or the test is over.
func listen(t *testing.T, at string) (end func()) {
	t.Helper()
	if out, err := exec.Command("ip", "address", "replace", at+"/32", "dev", "lo").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ln, err := net.Listen("tcp", at+":8080")
	if err != nil {
		t.Fatal(err)
	}
	end = func() { _ = ln.Close() }
	t.Cleanup(end)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { // until the client has enough
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}()
		}
	}()
	return end
}

// connect makes a connection that stays.
func connect(t *testing.T, to string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", to, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
}

// knock makes connections that end at once, or that nobody answers, one each pause until the test is over.
func knock(t *testing.T, to string, pause time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		for range 100_000 {
			if ctx.Err() != nil {
				return
			}
			d := net.Dialer{Timeout: time.Second} // real time: a client is like that
			if conn, err := d.DialContext(ctx, "tcp", to); err == nil {
				_ = conn.Close()
			}
			time.Sleep(pause) // real time: a client is like that
		}
	}()
}

// openDoor runs `svcctl dashboard` and returns its host and the link that opens it.
func openDoor(t *testing.T, a *served.Appliance) (host, link string) {
	t.Helper()
	cmd := exec.Command(a.Program, "dashboard", "--no-browser", "--socket", a.Socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) < 2 {
		t.Fatalf("svcctl dashboard says %q, %v", line, err)
	}
	link = words[1]
	return strings.Split(strings.TrimPrefix(link, "http://"), "/")[0], link
}

// patience is for what has to come.
const patience = time.Minute

// browser is one tab, and what it complained about.
type browser struct {
	context.Context
	t    *testing.T
	host string // of the door
	base string

	mu        sync.Mutex
	complains []string
	requests  []string
	refused   []string // "403 URL": requests that were answered by an error
	answered  []string // those to the dashboard that were not
}

// newBrowser opens the door. flags are Chromium's, "name" or "name=value".
func newBrowser(t *testing.T, a *served.Appliance, flags ...string) *browser {
	t.Helper()
	host, link := openDoor(t, a)
	b := launch(t, host, "http://"+host+"/dashboard/", flags...)
	b.do(chromedp.Navigate(link), chromedp.WaitVisible("main[data-page=overview]"))
	return b
}

// launch starts Chromium for pages below base.
func launch(t *testing.T, host, base string, flags ...string) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
			t.Fatal("chromium is not installed: run .ci/deps")
		}
		t.Skip("SKIPPED: chromium is not installed: run .ci/deps")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(profile(t)),
		chromedp.WSURLReadTimeout(patience), chromedp.WindowSize(1280, 900))
	for _, f := range flags {
		name, value, has := strings.Cut(f, "=")
		if has {
			options = append(options, chromedp.Flag(name, value))
		} else {
			options = append(options, chromedp.Flag(name, true))
		}
	}
	ctx, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	t.Cleanup(func() { _ = chromedp.Cancel(ctx) }) // waits for its end
	b := &browser{Context: ctx, t: t, host: host, base: base}
	chromedp.ListenTarget(ctx, b.hear)
	b.do(network.Enable(), log.Enable(), runtime.Enable())
	return b
}

// profile is a directory for what a browser writes. Processes of it may go on to write for a moment after its
// end, so what they leave is no failure, as it would be in t.TempDir.
func profile(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "svcctl-browser-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 50 {
			if os.RemoveAll(dir) == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	return dir
}

// hear notes what the browser complains about, and asks for.
func (b *browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.complains = append(b.complains, e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		b.complains = append(b.complains, fmt.Sprintf("console.%s: %v", e.Type, e.Args))
	case *log.EventEntryAdded: // reports of the content security policy are among these
		b.complains = append(b.complains, fmt.Sprintf("%s %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text, e.Entry.URL))
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *network.EventResponseReceived:
		if strings.HasPrefix(e.Response.URL, b.base) && e.Response.Status < 400 {
			b.answered = append(b.answered, e.Response.URL)
		}
		if e.Response.Status >= 400 {
			b.refused = append(b.refused, fmt.Sprintf("%d %s", e.Response.Status, e.Response.URL))
		}
	}
}

// do runs actions, for a minute at most.
func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	if err := b.try(actions...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) try(actions ...chromedp.Action) error {
	if chromedp.FromContext(b.Context).Target == nil { // the first run starts the browser, which ends with its context
		if err := chromedp.Run(b.Context); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(b.Context, patience)
	defer cancel()
	return chromedp.Run(ctx, actions...)
}

// open opens a page below /dashboard/.
func (b *browser) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base+path), chromedp.WaitVisible("#main"))
	b.loaded()
}

// loaded waits for the scripts of the page.
func (b *browser) loaded() {
	b.t.Helper()
	b.becomes(func() error {
		if state := value[string](b, "document.readyState"); state != "complete" {
			return fmt.Errorf("the page is %s", state)
		}
		return nil
	})
}

// value evaluates an expression that reads the page, again if the browser left the page meanwhile: a click that submits a form
// returns before its answer replaces the page.
func value[T any](b *browser, expression string) (v T) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := b.try(chromedp.Evaluate(expression, &v))
		if err == nil {
			return v
		}
		if left := new(cdproto.Error); !errors.As(err, &left) || left.Message != "Inspected target navigated or closed" || time.Now().After(deadline) {
			b.t.Fatal(err)
		}
	}
}

// texts are those of the elements of a selector, with dom methods alone: it works where scripts of the page do not.
func (b *browser) texts(selector string) []string {
	b.t.Helper()
	return value[[]string](b, fmt.Sprintf("[...document.querySelectorAll(%q)].map(e => e.innerText.trim())", selector))
}

// becomes waits until check is content: for a minute, or for longer.
func (b *browser) becomes(check func() error, longer ...time.Duration) {
	b.t.Helper()
	deadline := time.Now().Add(slices.Max(append(longer, patience)))
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// calm asserts that the browser complained about nothing, and asked the door alone.
func (b *browser) calm(when string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.complains {
		b.t.Errorf("%s: %s", when, text)
	}
	for _, url := range b.requests {
		if !strings.HasPrefix(url, "http://"+b.host+"/") {
			b.t.Errorf("%s: %s was asked for", when, url)
		}
	}
	b.complains, b.requests = nil, nil
}

// awaitPromise has an expression's promise waited for.
func awaitPromise(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
