package browser

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"svcctl.io/svcctl/api/conformance/served"
)

func TestMain(m *testing.M) { served.Main(m) }

// hostile is text that runs, or leaves its place, where it is not escaped.
const hostile = `"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`

const (
	vip      = "172.30.0.10:80"
	silent   = "172.30.0.11:80"
	refusing = "172.30.0.12:80"
)

// many are how many Services there are besides.
const many = 230

// manifests are Services of every kind that pages have a place for.
func manifests() map[string]string {
	service := func(name, more, endpoints string) string {
		text := "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: " + name + "\n" + more
		if endpoints != "" {
			text += "\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: " + name + "-1, labels: {kubernetes.io/service-name: " + name + "}}\n" +
				"addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints: [" + endpoints + "]"
		}
		return text + "\n"
	}
	var list strings.Builder
	for i := range many {
		list.WriteString(service(fmt.Sprintf("s%03d", i), fmt.Sprintf("spec: {clusterIP: 172.30.1.%d, ports: [{name: http, port: 80}]}", i+1), fmt.Sprintf("{addresses: [10.1.2.%d]}", i%250+1)))
	}
	return map[string]string{
		"web.yaml": service("web", "  annotations: {svcctl.io/weights: 192.0.2.1=3, note: '"+strings.ReplaceAll(hostile, "'", "''")+"'}\n"+
			"spec: {type: NodePort, clusterIP: 172.30.0.10, ports: [{name: http, port: 80, nodePort: 30080}]}",
			"{addresses: [192.0.2.1]}, {addresses: [192.0.2.78], conditions: {ready: false}}") +
			service("dark", "spec: {clusterIP: 172.30.0.11, ports: [{name: http, port: 80}]}", "{addresses: [192.0.2.77]}") +
			service("empty", "spec: {clusterIP: 172.30.0.12, ports: [{name: http, port: 80}]}", "") +
			service("outside", "  annotations: {svcctl.io/connection-log: 'true'}\nspec: {type: LoadBalancer, ports: [{name: http, port: 443}]}", "{addresses: [10.1.2.9]}"),
		"many.yaml": list.String(),
		"<img src=x onerror='window.hacked=1'>.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: bad, labels: {x: '<script>window.hacked=1</script>'}}\nspec: {ports: [{port: 99999}]}\n",
	}
}

// newAppliance serves the manifests, to a listener behind vip.
func newAppliance(t *testing.T) *served.Appliance {
	t.Helper()
	a := served.New(t, "--traffic=flows")
	for name, text := range manifests() {
		if err := os.WriteFile(filepath.Join(a.Manifests, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ln, err := net.Listen("tcp", "192.0.2.1:8080")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		var open []net.Conn // until the test is over
		for {
			conn, err := ln.Accept()
			if err != nil {
				for _, c := range open {
					_ = c.Close()
				}
				return
			}
			open = append(open, conn)
		}
	}()
	a.Start()
	return a
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

// knock sends a SYN without an answer, or that is refused, until the test is over.
func knock(t *testing.T, to string) {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go func() {
		for ctx.Err() == nil {
			var d net.Dialer
			if conn, err := d.DialContext(ctx, "tcp", to); err == nil {
				_ = conn.Close()
			}
			time.Sleep(50 * time.Millisecond)
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
	b.do(chromedp.Navigate(link), chromedp.WaitVisible("main[data-live=overview]"))
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
}

// value is that of an expression.
func value[T any](b *browser, expression string) (v T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &v))
	return v
}

// texts are those of the elements of a selector, with dom methods alone: it works where scripts of the page do not.
func (b *browser) texts(selector string) []string {
	b.t.Helper()
	return value[[]string](b, fmt.Sprintf("[...document.querySelectorAll(%q)].map(e => e.innerText.trim())", selector))
}

// becomes waits until check is content.
func (b *browser) becomes(check func() error) {
	b.t.Helper()
	deadline := time.Now().Add(patience)
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
