package rest

import (
	"cmp"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"svcctl.io/svcctl/api/kube/table"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

const (
	typeJSON = "application/json"
	typeYAML = "application/yaml"
)

// shape selects the parts of objects in an answer.
type shape int

const (
	whole    shape = iota
	tabular        // meta.k8s.io Table
	metadata       // meta.k8s.io PartialObjectMetadata
)

// form is the encoding of objects in an answer.
type form struct {
	shape shape
	// metaVersion is the version of meta.k8s.io that a Table or PartialObjectMetadata is
	// written in: v1 or v1beta1, which differ in name only.
	metaVersion string
	include     table.Include // the part of the object in each row of a Table
	yaml        bool
	pretty      bool // JSON for people
}

// metaAPIVersion returns the apiVersion of a Table or PartialObjectMetadata.
func (f form) metaAPIVersion() string { return "meta.k8s.io/" + f.metaVersion }

// negotiate returns the form of the response to a request: the client's most preferred one that is supported. If there is none, the error is 406 Not
// Acceptable.
func negotiate(r *http.Request, query url.Values, verb string) (form, error) {
	f, ok := form{}, r.Header.Get("Accept") == ""
	if !ok {
		for _, c := range parseAccept(r.Header.Values("Accept")) {
			if f, ok = formOf(c, verb); ok {
				break
			}
		}
	}
	switch {
	case !ok && verb == "watch":
		return form{}, notAcceptable(typeJSON + ";stream=watch")
	case !ok:
		return form{}, notAcceptable(typeJSON, typeYAML)
	}
	f.pretty = f.pretty || wantsPretty(r, query)
	if f.shape == tabular {
		var err error
		if f.include, err = table.ParseInclude(query.Get("includeObject")); err != nil {
			return form{}, badRequest("Unable to convert to Table as requested: %v", err)
		}
	}
	return f, nil
}

// formOf returns the form that a clause of an Accept header means; false when there is no
// such one.
func formOf(c clause, verb string) (form, bool) {
	var f form
	switch {
	case c.takes(typeJSON):
	case c.takes(typeYAML) && verb != "watch": // documents are no stream
		f.yaml = true
	default:
		return f, false
	}
	if stream := c.params["stream"]; stream != "" && stream != "watch" {
		return f, false
	}
	if c.params["sv"] != "" {
		return f, false
	}
	f.pretty = c.params["pretty"] == "1"
	as, group, version := c.params["as"], c.params["g"], c.params["v"]
	if as == "" && group == "" && version == "" {
		return f, true
	}
	if group != "meta.k8s.io" || version != "v1" && version != "v1beta1" || f.yaml {
		return f, false
	}
	f.metaVersion = version
	switch list := verb == "list"; {
	case as == table.KindTable:
		f.shape = tabular
	case as == table.KindMetadata && !list, as == table.KindMetadataList && list:
		f.shape = metadata
	default:
		return f, false
	}
	return f, true
}

// wantsPretty reports whether to indent the JSON of the response: by the query parameter pretty, or else for curl, Wget and browsers.
func wantsPretty(r *http.Request, query url.Values) bool {
	if text := query.Get("pretty"); text != "" {
		pretty, _ := strconv.ParseBool(text)
		return pretty
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// clause is one media type that a client accepts, with its parameters.
type clause struct {
	mediaType string // application/json, application/*, */*
	quality   float64
	params    map[string]string
}

// parseAccept parses the values of an Accept header (RFC 9110, section 12.5.1) and returns the most preferred first. It skips invalid ones.
func parseAccept(header []string) []clause {
	var clauses []clause
	for text := range strings.SplitSeq(strings.Join(header, ","), ",") {
		mediaType, params, err := mime.ParseMediaType(text)
		if err != nil {
			continue
		}
		c := clause{mediaType: mediaType, quality: 1, params: params}
		if q, ok := params["q"]; ok {
			delete(params, "q")
			if c.quality, err = strconv.ParseFloat(q, 64); err != nil {
				continue
			}
		}
		if c.quality > 0 {
			clauses = append(clauses, c)
		}
	}
	slices.SortStableFunc(clauses, func(a, b clause) int {
		return cmp.Or(cmp.Compare(b.quality, a.quality), cmp.Compare(a.wildcards(), b.wildcards()))
	})
	return clauses
}

// wildcards counts the wildcards of a clause: 0 for a type, 1 for type/*, 2 for */*.
func (c clause) wildcards() int { return strings.Count(c.mediaType, "*") }

// takes reports whether a media type without parameters is one that the clause means.
func (c clause) takes(mediaType string) bool {
	if c.mediaType == mediaType || c.mediaType == "*/*" {
		return true
	}
	kind, isRange := strings.CutSuffix(c.mediaType, "/*")
	return isRange && strings.HasPrefix(mediaType, kind+"/")
}

// acceptsJSON reports whether the Accept header of a request accepts JSON, as an absent or empty one does.
func acceptsJSON(r *http.Request) bool {
	return r.Header.Get("Accept") == "" || slices.ContainsFunc(parseAccept(r.Header.Values("Accept")), func(c clause) bool { return c.takes(typeJSON) })
}

// asksForGzip reports whether an Accept-Encoding header lists gzip, with a quality other than 0.
func asksForGzip(header []string) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(header, ","), ","), func(text string) bool {
		name, quality, _ := strings.Cut(text, ";")
		return strings.TrimSpace(name) == "gzip" && !slices.Contains([]string{"q=0", "q=0.0"}, strings.TrimSpace(quality))
	})
}

// encodingKey identifies an encoded version of an object in one form.
type encodingKey struct {
	revision         uint64 // revision of the change
	apiVersion, kind string
	namespace, name  string
	old              bool // the version before the change
	shape            shape
	metaVersion      string
	conditions       string // the conditions in the encoded Service
}

// maxEncodings bounds the size of the encodings cache in bytes. The cache only has to hold events that watches of the same objects have not sent yet.
const maxEncodings = 8 << 20

// encodings caches recently changed objects as encoded: each version is encoded once for all clients that watch it.
type encodings struct {
	mu    sync.Mutex
	texts map[encodingKey][]byte
	order []encodingKey // of texts, oldest first
	size  int
}

func newEncodings() *encodings { return &encodings{texts: map[encodingKey][]byte{}} }

// of returns the encoded version of a key, which encode makes if it is not cached; two concurrent calls may both make it. The result may
// not be changed.
func (e *encodings) of(key encodingKey, encode func() ([]byte, error)) ([]byte, error) {
	e.mu.Lock()
	text, ok := e.texts[key]
	e.mu.Unlock()
	if ok {
		return text, nil
	}
	text, err := encode()
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.texts[key]; ok {
		return text, nil
	}
	e.texts[key] = text
	e.order = append(e.order, key)
	for e.size += len(text); e.size > maxEncodings; {
		oldest := e.order[0]
		e.order = e.order[1:]
		e.size -= len(e.texts[oldest])
		delete(e.texts, oldest)
	}
	return text, nil
}

// The values of the query parameter fieldValidation.
const (
	strict = "Strict"
	warn   = "Warn"
	ignore = "Ignore"
)

// dryRunAll is the only valid value of the query parameter dryRun.
const dryRunAll = "All"

// maxManager bounds the name of a field manager, in bytes (FieldManagerMaxLength of apimachinery).
const maxManager = 128

// options has the query parameters of a write, and the warnings about it.
type options struct {
	dryRun     bool
	manager    string // "" if the client did not set fieldManager
	validation string // strict, warn or ignore
	force      *bool
	warnings   warnings
	// createsNamespace is set when the same dry run creates the namespace of the object.
	createsNamespace bool
	// asFile makes a dry run treat the applied object as new content of the file that declares it. The file's fields are replaced instead of
	// conflicting.
	asFile bool
}

// optionsOf reads the query parameters of a write. kind is the kind that errors name: CreateOptions, UpdateOptions or PatchOptions.
func optionsOf(r *request, kind string) (*options, error) {
	o := &options{manager: r.query.Get("fieldManager"), validation: r.query.Get("fieldValidation")}
	if values, ok := r.query["force"]; ok {
		o.force = new(values[0] != "false" && values[0] != "0")
	}
	errs := managerErrors(o.manager)
	errs = append(errs, dryRunErrors(r.query["dryRun"])...)
	o.dryRun = len(r.query["dryRun"]) > 0
	if o.asFile = r.query.Get("asFile") == "true"; o.asFile && !o.dryRun {
		errs = append(errs, object.Invalid("asFile", true, "is for dry runs only: the content of a file is changed in the file"))
	}
	switch o.validation {
	case "":
		o.validation = warn
	case strict, warn, ignore:
	default:
		errs = append(errs, unsupported("fieldValidation", o.validation, "", ignore, strict, warn))
	}
	if len(errs) > 0 {
		return nil, invalid("meta.k8s.io", kind, "", errs)
	}
	return o, nil
}

func managerErrors(manager string) object.Errors {
	var errs object.Errors
	if len(manager) > maxManager {
		errs = append(errs, object.Error{Type: object.FieldValueTooLong, Field: "fieldManager", Detail: fmt.Sprintf("may not be more than %d bytes", maxManager)})
	}
	for i, char := range manager {
		if !unicode.IsPrint(char) || char == utf8.RuneError {
			errs = append(errs, object.Invalid("fieldManager", manager, fmt.Sprintf("invalid character %#U (at position %d)", char, i)))
			break // one is enough
		}
	}
	return errs
}

func dryRunErrors(values []string) object.Errors {
	for _, value := range values {
		if value != dryRunAll {
			return object.Errors{unsupported("dryRun", values, dryRunAll)}
		}
	}
	return nil
}

func unsupported(field string, value any, supported ...string) object.Error {
	quoted := object.Texts(supported, strconv.Quote)
	return object.Error{Type: object.FieldValueNotSupported, Field: field, Value: value, Detail: "supported values: " + strings.Join(quoted, ", ")}
}

// warnOfFields adds warnings about fields, unless the client asked to ignore them
// (fieldValidation).
func (o *options) warnOfFields(fieldWarnings []string) {
	if o.validation != ignore {
		o.warnings.add(fieldWarnings...)
	}
}

// managerOf returns the field manager: the one that the client names, or the beginning of its
// User-Agent up to a slash, without unprintable characters.
func (o *options) managerOf(userAgent string) string {
	if o.manager != "" {
		return o.manager
	}
	name, _, _ := strings.Cut(userAgent, "/")
	var b strings.Builder
	for _, char := range strings.ToValidUTF8(name, "") {
		if !unicode.IsPrint(char) {
			continue
		}
		if b.Len()+utf8.RuneLen(char) > maxManager {
			break
		}
		b.WriteRune(char)
	}
	return b.String()
}

// caller returns the client of a write, for the journal.
func (o *options) caller(r *request, verb string) store.Caller {
	agent := strings.ToValidUTF8(r.http.UserAgent(), "?")
	const longest = 256
	if len(agent) > longest {
		agent = strings.ToValidUTF8(agent[:longest], "")
	}
	return store.Caller{User: r.user.Name, Manager: o.managerOf(r.http.UserAgent()), Agent: agent, Verb: verb, Trial: r.query.Get("trial"), Rollout: r.query.Get("rollout")}
}

// warnings collects the Warning headers of an answer, without repetitions.
type warnings []string

func (w *warnings) add(texts ...string) {
	for _, text := range texts {
		if text != "" && !slices.Contains(*w, text) {
			*w = append(*w, text)
		}
	}
}
