package dashboard

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"sync"
)

// refusalPage returns the template of an error page that is self-contained: it needs neither a Source nor a further request, so that clients without
// permissions can see it.
var refusalPage = sync.OnceValue(func() *template.Template { return template.Must(template.ParseFS(files, "pages/refusal.html")) })

var refusalStyle = sync.OnceValue(func() string { return string(must(files.ReadFile("static/style.css"))) })

// refusalPolicy returns the Content-Security-Policy of a self-contained error page. It allows only the style in the page, by its hash.
var refusalPolicy = sync.OnceValue(func() string {
	sum := sha256.Sum256([]byte(refusalStyle()))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; img-src data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
})

// Refuse responds with a self-contained error page. If inside is set, the page links to the overview.
func Refuse(w http.ResponseWriter, code int, why string, inside bool) {
	var b bytes.Buffer
	if err := refusalPage().Execute(&b, struct {
		Title, Why string
		Style      template.CSS
		Inside     bool
	}{titleOf(code), why, template.CSS(refusalStyle()), inside}); err != nil {
		panic(fmt.Sprintf("dashboard: page of a refusal: %v", err)) // our own template: a bug
	}
	guard(w.Header(), refusalPolicy())
	send(w, code, b.Bytes())
}

// Unauthorized answers a request without a token, such as one from a browser, with a 401 error page that explains how to open the dashboard.
func Unauthorized(w http.ResponseWriter, _ *http.Request) {
	Refuse(w, http.StatusUnauthorized, "Over the network the dashboard is for holders of a token, and a browser shows none. Run svcctl dashboard "+
		"--server HOST:PORT --token-file FILE --ca FILE on your machine, or sudo svcctl dashboard on the box: it opens the dashboard in your browser.", false)
}

// titleOf returns the title of a page about a failure.
func titleOf(code int) string { return strconv.Itoa(code) + " " + http.StatusText(code) }

// failure wraps the value of a panic in a page's handler; failing panics with it. It is an http.Handler that responds with an error page; see
// Handler.
type failure struct{ cause any }

func (f failure) Error() string { return fmt.Sprint(f.cause) }

// ServeHTTP implements http.Handler.
func (failure) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	Refuse(w, http.StatusInternalServerError, "The appliance failed on this page. Its log has the details.", true)
}

// failing must be deferred by a page's handler. It recovers a panic and panics again with a failure. It lets http.ErrAbortHandler pass unchanged.
func failing() {
	switch v := recover(); v {
	case nil:
	case http.ErrAbortHandler: // ends the connection, and needs no page
		panic(v)
	default:
		panic(failure{v})
	}
}
