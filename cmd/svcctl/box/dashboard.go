package box

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"svcctl.io/svcctl/api/dashboard"
	"svcctl.io/svcctl/appliance/discover"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/settings"
)

// codeLife is the time for which the link to the dashboard is valid.
const codeLife = time.Minute

func DashboardVerb() *cli.Verb {
	return &cli.Verb{
		Name: "dashboard",
		Options: append([]*cli.Option{
			{Name: "port", Arg: "N", Def: "0", Number: [2]int{0, math.MaxUint16}, Group: cli.GroupHow, Usage: "port of 127.0.0.1; 0 for one that is free"},
			{Name: "no-browser", Group: cli.GroupHow, Usage: "print the address and open no browser"},
		}, settings.ConnectOptions()...),
		Run: runDashboard,
	}
}

// runDashboard serves the dashboard on a loopback address until a signal stops it.
func runDashboard(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	c := env.Client(v)
	if _, err := c.Status(ctx); err != nil {
		return err
	}
	number := v.Option("port").Text()
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", number))
	if errors.Is(err, syscall.EADDRNOTAVAIL) { // a box without IPv4
		ln, err = net.Listen("tcp", net.JoinHostPort("::1", number))
	}
	if err != nil {
		return fmt.Errorf("listen for the browser: %w: give another --port", err)
	}
	d := newDoor(ln.Addr().String(), c.Proxy(unanswered), env.Now)
	server := &http.Server{Handler: d, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	if err := env.Print("Open " + d.link() + " in a browser within a minute; Ctrl-C ends it.\n"); err != nil {
		return errors.Join(err, server.Close())
	}
	if !v.Option("no-browser").On() && env.StdoutTTY && os.Getenv("DISPLAY")+os.Getenv("WAYLAND_DISPLAY") != "" {
		_ = exec.CommandContext(ctx, "xdg-open", d.link()).Start() // the address is printed
	}
	select {
	case <-ctx.Done():
		return server.Close()
	case err := <-served:
		return fmt.Errorf("serve the browser: %w", err)
	}
}

// unanswered writes the page for an appliance that does not answer.
func unanswered(w http.ResponseWriter, why error) {
	dashboard.Refuse(w, http.StatusBadGateway, why.Error(), true)
}

// door is an HTTP server on loopback that gives one browser access to the dashboard. The browser exchanges the one-time code in its link for a
// session cookie.
type door struct {
	address string // host:port of the server
	inside  http.Handler
	now     func() time.Time
	code    string // one-time code in the link
	until   time.Time
	used    atomic.Bool
	session string
}

func newDoor(address string, inside http.Handler, now func() time.Time) *door {
	return &door{address: address, inside: inside, now: now, code: rand.Text(), until: now().Add(codeLife), session: rand.Text()}
}

// link returns the URL with the code, for the browser.
func (d *door) link() string { return "http://" + d.address + "/open?code=" + d.code }

// cookie returns the name of the session cookie. It has the port, as browsers share cookies between the ports of a host.
func (d *door) cookie() string {
	_, port, _ := net.SplitHostPort(d.address)
	return "svcctl-" + port
}

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refuse := func(why string) { dashboard.Refuse(w, http.StatusForbidden, why, false) }
	// A page elsewhere may have its name resolved to this address (DNS rebinding): the browser
	// then sends that name. It may also send the user here: Sec-Fetch-Site shows that.
	if _, port, _ := net.SplitHostPort(d.address); r.Host != d.address && r.Host != "localhost:"+port {
		refuse("This door is only for http://" + d.address + ".")
		return
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" {
		refuse("A page of another site led here: open the address that svcctl dashboard prints.")
		return
	}
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
		refuse("A page of another site asks.")
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		dashboard.Refuse(w, http.StatusMethodNotAllowed, "Pages are only read: nothing is changed here.", false)
		return
	}
	if r.URL.Path == "/open" {
		d.open(w, r)
		return
	}
	if cookie, err := r.Cookie(d.cookie()); err != nil || !same(cookie.Value, d.session) {
		refuse("This browser has no session: run svcctl dashboard again, and open the address that it prints.")
		return
	}
	switch {
	case r.URL.Path == "/":
		http.Redirect(w, r, "/dashboard/", http.StatusSeeOther)
	case strings.HasPrefix(r.URL.Path, "/dashboard/"):
		d.inside.ServeHTTP(w, r)
	default:
		dashboard.Refuse(w, http.StatusNotFound, "Nothing is here but the pages of the dashboard.", true)
	}
}

// open exchanges the code for the session cookie. It does so only once, before the code expires.
func (d *door) open(w http.ResponseWriter, r *http.Request) {
	if !same(r.URL.Query().Get("code"), d.code) || d.now().After(d.until) || d.used.Swap(true) {
		dashboard.Refuse(w, http.StatusForbidden, "This address was good once, and for a minute: run svcctl dashboard again.", false)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: d.cookie(), Value: d.session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, "/dashboard/", http.StatusSeeOther)
}

// same reports whether two secrets are equal, in constant time.
func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func DiscoverVerb() *cli.Verb {
	return &cli.Verb{
		Name: "discover",
		Options: slices.Concat([]*cli.Option{
			{Name: "from", Arg: "[NAME=]KIND[+URL]", Def: "dns", Repeats: true, Group: cli.GroupHow,
				Usage: "provider, by its kind, with the name that annotations have for it, the kind without one; repeatable"},
		}, settings.Options("", "node-name", "log-level", "log-format"), settings.ConnectOptions()),
		Run: runDiscover,
	}
}

// runDiscover runs the discovery of endpoints from providers until a signal stops it.
func runDiscover(ctx context.Context, env *cli.Env, v *cli.Verb, _ []string) error {
	cfg, err := settings.Load(env, v)
	if err != nil {
		return err
	}
	d := discover.Config{Node: cfg.NodeName}
	if d.Client, err = settings.Connect(env, v); err != nil {
		return err
	}
	environ := map[string]string{}
	for _, entry := range env.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		environ[name] = value
	}
	from := v.Option("from").Texts
	if len(from) == 0 {
		from = []string{"dns"}
	}
	for _, text := range from {
		p, err := discover.Open(text, d.Node, environ)
		if err != nil {
			return cli.Usagef("--from %s: %v", text, err)
		}
		if slices.ContainsFunc(d.Providers, func(other discover.Provider) bool { return other.Name == p.Name }) {
			return cli.Usagef("--from %s: there are two providers %q: give one another name, as %s2=%s", text, p.Name, p.Name, text)
		}
		d.Providers = append(d.Providers, p)
	}
	log := openLog(env, &cfg.Log)
	ctx, stop := untilSignal(ctx, env, log, "endpoints stay as they are until it is started again")
	defer stop()
	return env.Discover(ctx, d, log)
}
