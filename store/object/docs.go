package object

import (
	_ "embed"
	"strings"
	"sync"
)

// fieldTexts documents every type and field: a name on a line of its own, then its text,
// indented.
//
//go:embed fields.txt
var fieldTexts string

var docs = sync.OnceValue(func() map[string]string {
	texts := map[string]string{}
	name := ""
	for line := range strings.Lines(fieldTexts) {
		text := strings.TrimSpace(line)
		switch {
		case text == "":
		case !strings.HasPrefix(line, " "):
			name = text
		case texts[name] != "":
			texts[name] += " " + text
		default:
			texts[name] = text
		}
	}
	return texts
})

// Doc returns the description of a type ("ServiceSpec") or a field of it ("ServiceSpec.type") on
// this appliance, for `kubectl explain` and its like; "" for unknown names.
func Doc(name string) string { return docs()[name] }
