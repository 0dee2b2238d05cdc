package browser

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// sitePages are pages with tables, long lines of code, lists and figures.
var sitePages = []string{"index.html", "docs/first-service.html", "docs/svcctl.html", "docs/tls.html", "docs/performance.html", "docs/reference/conditions.html", "examples/bgp/bird.conf.html"}

// newSite builds the site and serves it under the policy of the dashboard.
func newSite(t *testing.T) (host string) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	build := exec.Command("go", "run", ".", root, out)
	build.Dir = filepath.Join(root, ".ci", "package", "site")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	files := http.FileServer(http.Dir(out))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
		files.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(ln) }()
	t.Cleanup(func() { _ = server.Close() })
	return ln.Addr().String()
}

// Test922_the_site_in_a_browser: no report of the dashboard's policy, no request to elsewhere, no violation that axe-core finds, no
// page wider than a phone; the search finds what people look for.
func Test922_the_site_in_a_browser(t *testing.T) {
	host := newSite(t)
	b := launch(t, host, "http://"+host+"/")
	axe, why := axeCore(t)
	open := func(page string) { b.do(chromedp.Navigate(b.base+page), chromedp.WaitVisible("#content")) }
	pictures := os.Getenv("SVCCTL_SCREENSHOTS")
	picture := func(name string) {
		if pictures == "" {
			return
		}
		var content []byte
		b.do(chromedp.CaptureScreenshot(&content))
		if err := os.WriteFile(filepath.Join(pictures, "site-"+strings.NewReplacer("/", "-", ".html", "").Replace(name)+".png"), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			for _, page := range sitePages {
				b.look(theme, width)
				open(page)
				name := fmt.Sprintf("%s-%s-%d", page, theme, width)
				b.calm(name)
				picture(name)
				if wide := value[int64](b, "document.documentElement.scrollWidth"); wide > width {
					t.Errorf("%s is %d wide", name, wide)
				}
				if axe == "" {
					continue
				}
				b.do(chromedp.Evaluate(axe+";0", nil))
				var found []string
				b.do(chromedp.Evaluate(`axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => v.id + ": " + v.nodes.length + " times, as " + v.nodes[0].html.slice(0, 200)))`,
					&found, chromedp.EvalAsValue, awaitPromise))
				for _, violation := range found {
					t.Errorf("%s: %s", name, violation)
				}
				b.calm(name + " with axe-core")
			}
		}
	}
	b.look("light", 1280)
	for query, want := range map[string]string{"certificate expires": "docs/tls.html", "retry": "docs/balancing.html", "drain": "docs/lan.html", "no endpoint": "docs/reference/conditions.html"} {
		open("docs/reference/routes.html")
		b.do(chromedp.Evaluate(`document.dispatchEvent(new KeyboardEvent("keydown", {key: "/"}))`, nil))
		if at := value[string](b, "document.activeElement.id"); at != "query" {
			t.Errorf("/ leads to %q, not to the search", at)
		}
		b.do(chromedp.SendKeys("#query", query))
		links := func() []string {
			return value[[]string](b, `[...document.querySelectorAll("#found a")].map(a => new URL(a.href).pathname.slice(1))`)
		}
		b.becomes(func() error {
			for _, link := range links() {
				if link == want {
					return nil
				}
			}
			return fmt.Errorf("the search for %q finds %q, not %s", query, links(), want)
		})
		picture("search-" + strings.ReplaceAll(query, " ", "-"))
		first := links()[0]
		b.do(chromedp.SendKeys("#query", kb.Enter))
		b.becomes(func() error {
			if at := value[string](b, "location.pathname.slice(1)"); at != strings.TrimSuffix(first, "index.html") {
				return fmt.Errorf("Enter leads to %s, not to the first find, %s", at, first)
			}
			return nil
		})
	}
	b.calm("search")
	b.do(emulation.SetScriptExecutionDisabled(true))
	open("docs/tls.html")
	b.do(chromedp.Click(`nav a[href="../docs/health.html"]`), chromedp.WaitVisible("#the-check"))
	if why != "" {
		t.Skip("AXE-CORE WAS NOT TRIED: " + why)
	}
}
