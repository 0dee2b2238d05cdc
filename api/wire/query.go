package wire

import (
	"encoding"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

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

// WriteQuery returns the parameters of a query, without those that are zero.
func WriteQuery(q any) url.Values {
	values, v := url.Values{}, reflect.ValueOf(q)
	for i := range v.NumField() {
		if field, name := v.Field(i), v.Type().Field(i).Tag.Get("query"); name != "" && !field.IsZero() {
			values.Set(name, fmt.Sprint(field.Interface()))
		}
	}
	return values
}

// ReadQuery reads parameters into a query, the struct that q points to. Other parameters are ignored.
func ReadQuery(values url.Values, q any) error {
	v := reflect.ValueOf(q).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name := field.Tag.Get("query")
		if name == "" {
			continue
		}
		text := values.Get(name)
		given := text
		if text == "" {
			text = field.Tag.Get("default")
		}
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
