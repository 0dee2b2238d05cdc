package wire

import (
	"cmp"
	"encoding"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// TokenRequest is the body of POST /svcctl/v1/token.
type TokenRequest struct {
	Role     string   `json:"role,omitempty"`     // admin, endpoints or reader; empty: the role of the requesting user
	Duration Duration `json:"duration,omitempty"` // how long it is to be valid; 0 is an hour
	Name     string   `json:"name,omitempty"`     // purpose, shown as part of the user in the journal
}

// Token is the answer to a TokenRequest.
type Token struct {
	Token   string    `json:"token"`
	User    string    `json:"user"` // the user that it authenticates
	Role    string    `json:"role"`
	Expires time.Time `json:"expires"` // in UTC
}

// Revoked is the answer to DELETE /svcctl/v1/token: all earlier tokens are invalid.
type Revoked struct {
	Revoked bool `json:"revoked"`
	// Pending describes which boxes still accept earlier tokens, and why; "" if none does.
	Pending string `json:"pending,omitempty"`
}

// Endpoint is the TLS endpoint of the API: the answer to /svcctl/v1/endpoint.
type Endpoint struct {
	// Server is the URL for clients on this host.
	Server string `json:"server"`
	// CertificateAuthority is the certificate of the server's own CA in PEM; empty if the
	// operator provides the server's certificate.
	CertificateAuthority string `json:"certificateAuthority,omitempty"`
}

// JournalEntry is one change of an object: a line of the answer to /svcctl/v1/journal.
type JournalEntry struct {
	Revision  uint64    `json:"revision"`
	Time      time.Time `json:"time"` // in UTC
	Verb      string    `json:"verb"` // create, update or delete, or patch or apply by a client
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	// The author of the change: a user of the API with its field manager and User-Agent, a file, or a controller of the appliance.
	User       string `json:"user,omitempty"`
	Manager    string `json:"manager,omitempty"`
	Agent      string `json:"agent,omitempty"`
	File       string `json:"file,omitempty"`
	Controller string `json:"controller,omitempty"`
}

// Author returns the author: "root (kubectl-edit)", a file, or "the endpoints controller".
func (e *JournalEntry) Author() string {
	switch {
	case e.Controller != "":
		return "the " + e.Controller + " controller"
	case e.User != "" && e.Manager != "":
		return e.User + " (" + e.Manager + ")"
	}
	return cmp.Or(e.User, e.File, "svcctl")
}

// History holds the recorded state changes on this box. It is the response of /svcctl/v1/history.
type History struct {
	At time.Time `json:"at"` // the clock of the box, in UTC
	// From is the start of the recorded history.
	From    time.Time      `json:"from"`
	Entries []HistoryEntry `json:"entries"` // the oldest first
}

// HistoryEntry is a state change of a problem, of an endpoint's health, of a Service, or of an announcement. Changes with the same cause within
// seconds are one entry. Changes of objects are in the journal instead.
type HistoryEntry struct {
	Time time.Time `json:"time"` // in UTC
	Kind string    `json:"kind"` // problem, endpoint, condition (of Services) or announcement
	// Severity is error or warning when a fault begins. It is "" when a fault ends, and for other improvements.
	Severity string `json:"severity,omitempty"`
	// Text describes the change, such as "10.1.2.12:8080 of shop/web and 10 others went down: connection refused".
	Text string `json:"text"`
	// Services lists the first Services concerned, as "namespace/name"; Concerned counts all of them.
	Services  []string `json:"services,omitempty"`
	Concerned int      `json:"concerned,omitempty"`
}

// The fields of a query are parameters. Their types are string, bool, int, uint16 to uint64, time.Duration, and those that implement
// encoding.TextUnmarshaler. A query with a method Complete is completed, or refused, by it. The tags are
//
//	query     the name of the parameter
//	default   its value where it is absent; without one that is the zero value
//	required  set to true if it must not be absent
//	least     the least and the greatest value of a number or a duration
//	most
//	oneof     the values of a string, with commas between them
//	want      the description of valid values, for the error; without one it follows from the other tags

// WriteQuery returns the URL parameters of a query struct. Fields with zero values are left out.
func WriteQuery(q any) url.Values {
	values, v := url.Values{}, reflect.ValueOf(q)
	for i := range v.NumField() {
		if field, name := v.Field(i), v.Type().Field(i).Tag.Get("query"); name != "" && !field.IsZero() {
			values.Set(name, fmt.Sprint(field.Interface()))
		}
	}
	return values
}

// ReadQuery decodes URL parameters into the struct that q points to. It ignores parameters without a field.
func ReadQuery(values url.Values, q any) error {
	v := reflect.ValueOf(q).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name := field.Tag.Get("query")
		if name == "" {
			continue
		}
		given := values.Get(name)
		text := cmp.Or(given, field.Tag.Get("default"))
		if !readParameter(v.Field(i), field.Tag, text) {
			return fmt.Errorf("%s=%q: want %s", name, given, wanted(field))
		}
	}
	if c, is := q.(interface{ Complete() error }); is {
		return c.Complete()
	}
	return nil
}

// readParameter sets a field of a query, and reports whether the text is a valid value of it.
func readParameter(to reflect.Value, tag reflect.StructTag, text string) bool {
	if text == "" {
		return tag.Get("required") == ""
	}
	if u, is := to.Addr().Interface().(encoding.TextUnmarshaler); is {
		return u.UnmarshalText([]byte(text)) == nil
	}
	switch to.Interface().(type) {
	case string:
		to.SetString(text)
		values, limited := tag.Lookup("oneof")
		return !limited || slices.Contains(strings.Split(values, ","), text)
	case bool:
		to.SetBool(text == "true")
		return true
	case time.Duration:
		d, err := time.ParseDuration(text)
		to.SetInt(int64(d))
		return err == nil && inBounds(d, tag, time.ParseDuration)
	case int:
		n, err := strconv.Atoi(text)
		to.SetInt(int64(n))
		return err == nil && inBounds(n, tag, strconv.Atoi)
	}
	parse := func(text string) (uint64, error) { return strconv.ParseUint(text, 10, to.Type().Bits()) }
	n, err := parse(text)
	to.SetUint(n)
	return err == nil && inBounds(n, tag, parse)
}

// inBounds reports whether a value is within the bounds of its parameter.
func inBounds[T int | uint64 | time.Duration](value T, tag reflect.StructTag, parse func(string) (T, error)) bool {
	least, errLeast := parse(tag.Get("least"))
	most, errMost := parse(tag.Get("most"))
	return (errLeast != nil || value >= least) && (errMost != nil || value <= most)
}

// wanted describes the valid values of a parameter.
func wanted(field reflect.StructField) string {
	if want := field.Tag.Get("want"); want != "" {
		return want
	}
	if values, limited := field.Tag.Lookup("oneof"); limited {
		return strings.ReplaceAll(values, ",", " or ")
	}
	want := "a number"
	if field.Type == reflect.TypeFor[time.Duration]() {
		want = "a duration as 5m"
	}
	if least, most := field.Tag.Get("least"), field.Tag.Get("most"); most != "" {
		want += ", from " + least + " to " + most
		want = strings.Replace(want, "a number, from", "a number from", 1)
	}
	return want
}
