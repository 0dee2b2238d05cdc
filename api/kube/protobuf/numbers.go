package protobuf

import (
	_ "embed" // numbers.txt
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// A numbering are the names of the fields of a message, by their numbers.
type numbering map[protowire.Number]string

//go:embed numbers.txt
var numbersText string

// numbers are the fields of the messages that are read.
var numbers = func() map[string]numbering {
	all := map[string]numbering{}
	for line := range strings.Lines(numbersText) {
		message, list, is := strings.Cut(line, ": ")
		if !is {
			continue
		}
		all[message] = numbering{}
		for field := range strings.SplitSeq(list, ",") {
			var n protowire.Number
			var name string
			if _, err := fmt.Sscan(field, &n, &name); err != nil {
				panic("protobuf: numbers.txt: " + field)
			}
			all[message][n] = name
		}
	}
	return all
}()

// inline are the messages whose fields are those of the message around them in JSON, by that
// message and their number in it.
var inline = map[string]map[protowire.Number]string{
	"core.v1.Probe": {1: "core.v1.ProbeHandler"},
}
