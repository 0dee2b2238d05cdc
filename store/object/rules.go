package object

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The fields of the kinds of the Gateway API have their rules beside them, in tags:
//
//	default:"Same"           the value of an absent field; {} is an empty structure, [{}] a list of one
//	valid:"1..64 keys:name"  words of which each has to hold
//
// A word is a range (of a number, or of the length of a text, list or mapping), alternatives with | between
// them, the name of a form in forms, keys:FIELD or set for the items of a list, and each:WORD for the items
// of a list or the values of a mapping. A field whose json tag has no omitempty or omitzero is required.
// The texts of errors are those of Kubernetes for CustomResourceDefinitions (k8s.io/apiextensions-apiserver).

// forms has the forms of strings, by their names in tags.
var forms = map[string]form{
	"group":       {0, 253, &pattern{text: "^$|^" + dns1123Subdomain + "$"}},
	"kind":        {1, 63, &pattern{text: "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"}},
	"name":        {1, 253, nil},
	"namespace":   {1, 63, dns1123LabelRE},
	"section":     {1, 253, dns1123SubdomainRE},
	"hostname":    {1, 253, hostnameRE},
	"label":       {0, 63, &pattern{text: "^(" + labelKeyName + ")?$"}},
	"controller":  {1, 253, &pattern{text: "^" + dns1123Subdomain + `\/` + pathCharacters + "+$"}},
	"addressType": {1, 253, &pattern{text: "^Hostname|IPAddress|NamedAddress|" + dns1123Subdomain + `\/` + pathCharacters + "+$"}},
	"protocol":    {1, 255, &pattern{text: "^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$|" + dns1123Subdomain + `\/[A-Za-z0-9]+$`}},
	"duration":    {0, unbounded, &pattern{text: "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}},
	"header":      {1, 256, &pattern{text: `^[A-Za-z0-9!#$%&'*+\-.^_\x60|~]+$`}},
	"origin":      {1, 253, &pattern{text: `(^\*$)|(^(http(s)?):\/\/(((\*\.)?([a-zA-Z0-9\-]+\.)*[a-zA-Z0-9-]+|\*)(:([0-9]{1,5}))?)$)`}},
	"reason":      {1, 1024, &pattern{text: "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"}},
	"condition":   {0, 316, &pattern{text: "^(" + dns1123Subdomain + "/)?(" + labelKeyName + ")$"}},
}

// A form is the minimum and maximum length of a string, and its pattern.
type form struct {
	least, most int
	pattern     *pattern
}

const (
	unbounded      = -1
	pathCharacters = `[A-Za-z0-9\/\-._~%!$&'()*+,;=:]`
)

var hostnameRE = &pattern{text: `^(\*\.)?` + dns1123Subdomain + "$"}

// Tags has the properties from a field's tag that appear in the OpenAPI schema.
type Tags struct {
	Required, Set bool
	Key           string
	Enum          []string
}

// A fieldRule has the parsed tag of one field.
type fieldRule struct {
	Tags
	index int
	name  string
	// fallback is the default of the field, from its tag, if hasFallback is set.
	fallback    string
	hasFallback bool
	value, each valueRule
}

// A valueRule has the rules from a tag that apply to a value; the zero valueRule has none.
type valueRule struct {
	form
	bounded bool
	enum    []string
}

var fieldRules sync.Map // cache of the rules of structures: reflect.Type to []fieldRule

func rulesOf(t reflect.Type) []fieldRule {
	if known, has := fieldRules.Load(t); has {
		return known.([]fieldRule)
	}
	var rules []fieldRule
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "metadata" {
			continue
		}
		r := fieldRule{index: i, name: name}
		r.Required = !strings.Contains(options, "omit")
		r.fallback, r.hasFallback = f.Tag.Lookup("default")
		for word := range strings.FieldsSeq(f.Tag.Get("valid")) {
			if key, is := strings.CutPrefix(word, "keys:"); is {
				r.Key = key
			} else if of, is := strings.CutPrefix(word, "each:"); is {
				r.each.add(of)
			} else if word == "set" {
				r.Set = true
			} else {
				r.value.add(word)
			}
		}
		r.Enum = append(slices.Clone(r.value.enum), r.each.enum...)
		rules = append(rules, r)
	}
	fieldRules.Store(t, rules)
	return rules
}

// add adds one word of a tag to the rule.
func (r *valueRule) add(word string) {
	if form, is := forms[word]; is {
		r.form, r.bounded = form, true
	} else if least, most, is := strings.Cut(word, ".."); is {
		r.bounded = true
		r.least, r.most = number(least), unbounded
		if most != "" {
			r.most = number(most)
		}
	} else if strings.Contains(word, "|") {
		r.enum = strings.Split(word, "|")
	} else {
		panic("object: no rule " + word)
	}
}

// number parses a number in a tag.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic("object: " + err.Error())
	}
	return n
}

// TagsOf returns the Tags of the field with a JSON name. It returns false if there is no such field, or if no field of the structure has validation
// tags.
func TagsOf(structure reflect.Type, field string) (Tags, bool) {
	has := false
	for i := range structure.NumField() {
		_, is := structure.Field(i).Tag.Lookup("valid")
		has = has || is
	}
	if !has {
		return Tags{}, false
	}
	rules := rulesOf(structure)
	i := slices.IndexFunc(rules, func(r fieldRule) bool { return r.name == field })
	if i < 0 {
		return Tags{}, false
	}
	return rules[i].Tags, true
}

// experimental lists, by structure, the fields that exist in the experimental channel of the Gateway API only.
var experimental = map[string]string{
	"GatewaySpec": "defaultScope", "L4RouteSpec": "useDefaultGateways", "TLSRouteSpec": "useDefaultGateways", "HTTPRouteSpec": "useDefaultGateways",
	"HTTPRouteRule": "retry sessionPersistence", "HTTPRouteFilter": "externalAuth",
}

// Experimental returns the end of a message about an unknown field, if the structure has that field in the experimental
// channel of the Gateway API; else "".
func Experimental(structure, field string) string {
	if slices.Contains(strings.Fields(experimental[structure]), field) {
		return ", which is of the experimental channel of the Gateway API: remove it"
	}
	return ""
}

// setTagged sets absent fields in v to the defaults in their tags. It leaves an absent structure as it is, unless it is spec.
func setTagged(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			setTagged(v.Elem())
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct {
			for i := range v.Len() {
				setTagged(v.Index(i))
			}
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for _, r := range rulesOf(v.Type()) {
			f := v.Field(r.index)
			if r.hasFallback && f.IsNil() {
				f.Set(fallbackOf(f.Type(), r.fallback))
			}
			if f.Kind() != reflect.Struct || !f.IsZero() || r.name == "spec" {
				setTagged(f)
			}
		}
	}
}

// fallbackOf returns the default value of a field: a pointer or a list.
func fallbackOf(t reflect.Type, text string) reflect.Value {
	if t.Kind() == reflect.Slice {
		return reflect.MakeSlice(t, 1, 1)
	}
	p := reflect.New(t.Elem())
	switch t.Elem().Kind() {
	case reflect.String:
		p.Elem().SetString(text)
	case reflect.Int32:
		p.Elem().SetInt(int64(number(text)))
	}
	return p
}

// A ruled structure has validation rules beyond those of its single fields.
type ruled interface{ rules(at path) Errors }

// checkTagged validates a structure, and the structures in it, by the tags of their fields and by their rules methods.
func checkTagged(at path, v reflect.Value) Errors {
	var errs Errors
	for _, r := range rulesOf(v.Type()) {
		switch f, in := v.Field(r.index), at.child(r.name); {
		case r.Required && f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[time.Time]():
			errs = append(errs, checkTagged(in, f)...) // what it lacks
		case !f.IsZero() || f.Kind() == reflect.Int32 && (r.value.least <= 0 || !r.Required):
			errs = append(errs, r.check(in, reflect.Indirect(f))...)
		case r.Required && (f.Kind() != reflect.String || r.value.least > 0 || r.value.enum != nil):
			errs = append(errs, required(in, "")...)
		}
	}
	if v.CanAddr() {
		if o, is := v.Addr().Interface().(ruled); is {
			errs = append(errs, o.rules(at)...)
		}
	}
	return errs
}

// check returns the errors of a field's value, which is present.
func (r *fieldRule) check(at path, v reflect.Value) Errors {
	errs := r.value.check(at, v)
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() != reflect.TypeFor[time.Time]() {
			errs = append(errs, checkTagged(at, v)...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			if item := v.Index(i); item.Kind() == reflect.Struct {
				errs = append(errs, checkTagged(at.index(i), item)...)
			} else {
				errs = append(errs, r.each.check(at.index(i), item)...)
			}
		}
		errs = append(errs, r.repeated(at, v)...)
	case reflect.Map:
		for _, key := range sortedKeys(v.Interface().(map[string]string)) {
			errs = append(errs, r.each.check(at.child(key), v.MapIndex(reflect.ValueOf(key)))...)
		}
	}
	return errs
}

// repeated returns an error for each duplicate item in a list of type set, or duplicate key in a list of type map.
func (r *fieldRule) repeated(at path, list reflect.Value) Errors {
	var errs Errors
	seen := map[any]bool{}
	for i := range list.Len() {
		var value any
		switch item := list.Index(i); {
		case r.Set:
			value = item.Interface()
		case r.Key != "":
			fields := rulesOf(item.Type())
			at := slices.IndexFunc(fields, func(f fieldRule) bool { return f.name == r.Key })
			value = reflect.Indirect(item.Field(fields[at].index)).Interface()
		default:
			return nil
		}
		if seen[value] {
			shown := value
			if r.Key != "" {
				shown = map[string]any{r.Key: value}
			}
			errs = append(errs, duplicate(at.index(i), shown)...)
		}
		seen[value] = true
	}
	return errs
}

// check returns the errors of one value, without those of the values in it.
func (r *valueRule) check(at path, v reflect.Value) Errors {
	body := func(format string, args ...any) Errors {
		return invalid(at, v.Interface(), at.String()+" in body should "+fmt.Sprintf(format, args...))
	}
	var errs Errors
	switch size := 0; v.Kind() {
	case reflect.String:
		text := v.String()
		if r.bounded && len(text) > 0 {
			size = len([]rune(text))
		}
		if r.bounded && r.most != unbounded && size > r.most {
			errs = append(errs, tooLong(at, r.most)...)
		}
		if r.bounded && size < r.least {
			errs = append(errs, body("be at least %d chars long", r.least)...)
		}
		if r.pattern != nil && !r.pattern.MatchString(text) {
			errs = append(errs, body("match '%s'", r.pattern.text)...)
		}
		if r.enum != nil && !slices.Contains(r.enum, text) {
			errs = append(errs, notSupported(at, text, r.enum)...)
		}
	case reflect.Int32, reflect.Int64:
		n := int(v.Int())
		if r.bounded && n < r.least {
			errs = append(errs, body("be greater than or equal to %d", r.least)...)
		}
		if r.bounded && r.most != unbounded && n > r.most {
			errs = append(errs, body("be less than or equal to %d", r.most)...)
		}
		if r.enum != nil && !slices.Contains(r.enum, strconv.Itoa(n)) {
			wrong := notSupported(at, "", r.enum)
			wrong[0].Value = n
			errs = append(errs, wrong...)
		}
	case reflect.Slice, reflect.Map:
		size = v.Len()
		if r.bounded && size < r.least {
			errs = append(errs, invalid(at, size, fmt.Sprintf("%s in body should have at least %d items", at, r.least))...)
		}
		if r.bounded && r.most != unbounded && size > r.most {
			errs = append(errs, tooMany(at, size, r.most)...)
		}
	}
	return errs
}

// tagged reports whether the defaults and rules of the kind stand in tags of its fields.
func (s *Strategy) tagged() bool { return s.Group == GroupGateway }

// checkObject returns the errors of an object by the tags of its fields, without those of its metadata.
func checkObject(o Object) Errors {
	var errs Errors
	v := reflect.ValueOf(o).Elem()
	for _, r := range rulesOf(v.Type()) {
		if f := v.Field(r.index); !f.IsZero() || r.name == "spec" {
			errs = append(errs, checkTagged(root(r.name), f)...)
		}
	}
	return errs
}
