package dashboard

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
)

// A refusal is a page that stands alone: it needs neither a Source nor another request, so whoever may see nothing else can see it.
var (
	refusalPage  = template.Must(template.ParseFS(files, "pages/refusal.html"))
	refusalStyle = readStyle()
	// refusalPolicy lets in nothing but the page's own style, which it names by its hash.
	refusalPolicy = "default-src 'none'; style-src 'sha256-" + hashOf(refusalStyle) + "'; img-src data:; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

func readStyle() string {
	style, err := files.ReadFile("static/style.css")
	if err != nil {
		panic(err) // embedded: a bug
	}
	return string(style)
}

func hashOf(style string) string {
	sum := sha256.Sum256([]byte(style))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// Refuse answers with a page that says why there is no other. Inside reports that the overview may be seen from there.
func Refuse(w http.ResponseWriter, code int, why string, inside bool) {
	var b bytes.Buffer
	if err := refusalPage.Execute(&b, struct {
		Title, Why string
		Style      template.CSS
		Inside     bool
	}{strconv.Itoa(code) + " " + http.StatusText(code), why, template.CSS(refusalStyle), inside}); err != nil {
		panic(fmt.Sprintf("dashboard: page of a refusal: %v", err)) // our own template: a bug
	}
	header := w.Header()
	for name, value := range map[string]string{
		"Content-Security-Policy": refusalPolicy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		"Content-Type": "text/html; charset=utf-8", "Content-Length": strconv.Itoa(b.Len()),
	} {
		header.Set(name, value)
	}
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes())
}

// failure is what a page's handler panics with: the cause, and the answer of who recovers.
type failure struct{ cause any }

func (f failure) Error() string { return fmt.Sprint(f.cause) }

// ServeHTTP implements http.Handler.
func (failure) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	Refuse(w, http.StatusInternalServerError, "The appliance failed on this page. Its log has the details.", true)
}

// failing gives the panic of a page's handler an answer.
func failing() {
	if v := recover(); v != nil && v != http.ErrAbortHandler {
		panic(failure{v})
	} else if v != nil {
		panic(v)
	}
}
