package protobuf

import (
	"bytes"
	_ "embed" // numbers.txt
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"svcctl.io/svcctl/store/schema"
)

// MediaType is the Content-Type of such a body.
const MediaType = "application/vnd.kubernetes.protobuf"

// magic is the prefix of a body.
var magic = []byte{'k', '8', 's', 0}

// The fields of runtime.Unknown, and of the TypeMeta in it.
const (
	unknownTypeMeta protowire.Number = 1
	unknownRaw      protowire.Number = 2
	unknownEncoding protowire.Number = 3

	typeMetaAPIVersion protowire.Number = 1
	typeMetaKind       protowire.Number = 2
)

// Envelope is the runtime.Unknown around an object.
type Envelope struct {
	APIVersion, Kind string
	raw              []byte
}

// Open decodes the envelope of a body.
func Open(body []byte) (Envelope, error) {
	if len(body) > schema.MaxBytes {
		return Envelope{}, fmt.Errorf("the body is %d bytes long: send at most %d", len(body), schema.MaxBytes)
	}
	content, ok := bytes.CutPrefix(body, magic)
	if !ok {
		return Envelope{}, errors.New("the body does not begin as Kubernetes' protobuf does: provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
	}
	var e Envelope
	err := fields(content, func(n protowire.Number, v value) error {
		switch n {
		case unknownTypeMeta:
			return fields(v.bytes, func(n protowire.Number, v value) error {
				switch n {
				case typeMetaAPIVersion:
					e.APIVersion = string(v.bytes)
				case typeMetaKind:
					e.Kind = string(v.bytes)
				}
				return nil
			})
		case unknownRaw:
			e.raw = v.bytes
		case unknownEncoding:
			if len(v.bytes) > 0 {
				return fmt.Errorf("content encoding %q is not read: send it without", v.bytes)
			}
		}
		return nil
	})
	if err != nil {
		return Envelope{}, fmt.Errorf("protobuf envelope: %w", err)
	}
	return e, nil
}

// Object decodes the object in the envelope. The caller looks up its type by APIVersion
// and Kind.
func (e Envelope) Object(t *schema.Type) (map[string]any, error) {
	d := &decoder{}
	o := map[string]any{}
	if err := d.message(e.raw, t, o); err != nil {
		return nil, fmt.Errorf("protobuf of %s: %w", t.Short, err)
	}
	if e.Kind != "" {
		o["kind"] = e.Kind
	}
	if e.APIVersion != "" {
		o["apiVersion"] = e.APIVersion
	}
	return o, nil
}

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
