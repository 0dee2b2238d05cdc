package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// longestSetting bounds the value of a setting in a message, in bytes.
const longestSetting = 120

// agree reports whether two documents of settings are equal.
func agree(a, b json.RawMessage) bool {
	return bytes.Equal(a, b) || json.Valid(a) && json.Valid(b) && reflect.DeepEqual(fieldsOf(a), fieldsOf(b))
}

// SettingLines are settings as they are given on a command line, one each: "--service-node-port-range 30000-32767". flags has the
// flag of each field, and is what Config.Flags is; a field without one is named itself.
func SettingLines(settings json.RawMessage, flags map[string]string) (lines []string) {
	fields := fieldsOf(settings)
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		line := flagOf(field, flags)
		if text := settingText(fields[field]); text != "true" { // a bool flag needs no value
			line += " " + text
		}
		lines = append(lines, line)
	}
	return lines
}

// differences names the settings that a box and its fleet do not have in common, with both values.
func differences(here, there json.RawMessage, flags map[string]string) string {
	a, b := fieldsOf(here), fieldsOf(there)
	all := maps.Clone(a)
	maps.Copy(all, b)
	var texts []string
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if x, y := settingText(a[field]), settingText(b[field]); x != y {
			texts = append(texts, fmt.Sprintf("%s is %s here and %s in the fleet", flagOf(field, flags), shortened(x), shortened(y)))
		}
	}
	if texts == nil {
		return "they have another form" // another version has written them
	}
	return strings.Join(texts, "; ")
}

// fieldsOf are the fields of a JSON object; none when it is not one.
func fieldsOf(settings json.RawMessage) map[string]any {
	fields := map[string]any{}
	if json.Unmarshal(settings, &fields) != nil || fields == nil {
		return map[string]any{}
	}
	return fields
}

func flagOf(field string, flags map[string]string) string {
	if flag := flags[field]; flag != "" {
		return "--" + flag
	}
	return field
}

// settingText is a value as a flag takes it; "": there is none.
func settingText(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case []any:
		texts := make([]string, len(v))
		for i := range v {
			texts[i] = fmt.Sprint(v[i])
		}
		return strings.Join(texts, ",")
	}
	return fmt.Sprint(value)
}

func shortened(text string) string {
	switch {
	case text == "":
		return "not set"
	case text == "true":
		return "set"
	case len(text) > longestSetting:
		return text[:longestSetting] + "..."
	}
	return text
}
