package rest

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

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
	manager    string // "": the client did not say
	validation string // strict, warn or ignore
	force      *bool
	warnings   warnings
	// createsNamespace is set when the same dry run creates the namespace of the object.
	createsNamespace bool
	// asFile makes a dry run apply as the file of the appliance that declares the object: the fields
	// of the file are replaced, not in conflict.
	asFile bool
}

// optionsOf reads the query parameters. Their kind is how errors name them:
// CreateOptions, UpdateOptions, PatchOptions.
func optionsOf(r *request, kind string) (*options, error) {
	o := &options{manager: r.query.Get("fieldManager"), validation: r.query.Get("fieldValidation")}
	if values, ok := r.query["force"]; ok {
		o.force = new(values[0] != "false" && values[0] != "0")
	}
	errs := managerErrors(o.manager)
	errs = append(errs, dryRunErrors(r.query["dryRun"])...)
	o.dryRun = len(r.query["dryRun"]) > 0
	if o.asFile = r.query.Get("asFile") == "true"; o.asFile && !o.dryRun {
		errs = append(errs, object.Error{
			Type: object.FieldValueInvalid, Field: "asFile", Value: true, Detail: "is for dry runs only: the content of a file is changed in the file",
		})
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
			errs = append(errs, object.Error{
				Type: object.FieldValueInvalid, Field: "fieldManager", Value: manager, Detail: fmt.Sprintf("invalid character %#U (at position %d)", char, i),
			})
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
	quoted := make([]string, len(supported))
	for i, text := range supported {
		quoted[i] = fmt.Sprintf("%q", text)
	}
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

// caller returns the client of a write, as the journal keeps it.
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
