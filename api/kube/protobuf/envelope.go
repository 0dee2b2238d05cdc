package protobuf

import (
	"bytes"
	_ "embed" // numbers.txt
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"svcctl.io/svcctl/store/schema"
)

// MediaType is the Content-Type of a body in the protobuf encoding of Kubernetes.
const MediaType = "application/vnd.kubernetes.protobuf"

// magic is the prefix of every body in the protobuf encoding of Kubernetes.
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

// A numbering maps the field numbers of a message to the names of its fields.
type numbering map[protowire.Number]string

//go:embed numbers.txt
var numbersText string

// numbers maps the name of each message that can be decoded to its field numbers.
var numbers = sync.OnceValue(func() map[string]numbering {
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
})

// inline lists embedded messages that JSON inlines into the outer message. It maps the name of the outer message and the field number there to the
// name of the embedded message.
var inline = map[string]map[protowire.Number]string{
	"core.v1.Probe": {1: "core.v1.ProbeHandler"},
}

// maxValues bounds the values of a body: an empty message takes two bytes of it but much
// more memory.
const maxValues = 1 << 18

// value is the value of a field: a number or bytes.
type value struct {
	wire   protowire.Type
	number uint64
	bytes  []byte
}

// fields calls each for every field of a message.
func fields(message []byte, each func(protowire.Number, value) error) error {
	for len(message) > 0 {
		n, wire, size := protowire.ConsumeTag(message)
		if size < 0 {
			return fmt.Errorf("malformed: %w", protowire.ParseError(size))
		}
		message = message[size:]
		v := value{wire: wire}
		switch wire {
		case protowire.VarintType:
			v.number, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			v.bytes, size = protowire.ConsumeBytes(message)
		case protowire.Fixed32Type:
			_, size = protowire.ConsumeFixed32(message)
		case protowire.Fixed64Type:
			_, size = protowire.ConsumeFixed64(message)
		default:
			return fmt.Errorf("malformed: field %d is a group", n)
		}
		if size < 0 {
			return fmt.Errorf("malformed: field %d: %w", n, protowire.ParseError(size))
		}
		message = message[size:]
		if err := each(n, v); err != nil {
			return err
		}
	}
	return nil
}

type decoder struct{ values int }

// message decodes a message into an object, which may have fields from an earlier part of
// the same message. The depth is bounded by the type: no type contains itself.
func (d *decoder) message(b []byte, t *schema.Type, o map[string]any) error {
	if err := d.part(b, messageName(t), t, o); err != nil {
		return err
	}
	for _, f := range t.Fields {
		// Ports of Endpoints share their type with those of EndpointSlices here, whose fields are pointers: Kubernetes writes their zero values.
		if v, there := o[f.Name]; there && (f.OmitZero || (f.Name == "name" || f.Name == "protocol") && messageName(t) == "core.v1.EndpointPort") && isZero(v, f.Type) {
			delete(o, f.Name)
		}
	}
	return nil
}

// part decodes a message, or a message embedded in one, into o. name selects the field numbers, t the fields.
func (d *decoder) part(b []byte, name string, t *schema.Type, o map[string]any) error {
	return fields(b, func(n protowire.Number, v value) error {
		if inner, is := inline[name][n]; is {
			if err := want(v, protowire.BytesType); err != nil {
				return err
			}
			return d.part(v.bytes, inner, t, o)
		}
		f, known := t.Field(numbers()[name][n])
		if !known {
			return nil
		}
		if err := d.field(v, f, o); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		return nil
	})
}

// messageName returns "core.v1.ServiceSpec" for io.k8s.api.core.v1.ServiceSpec.
func messageName(t *schema.Type) string {
	parts := strings.Split(t.Name, ".")
	return strings.Join(parts[max(0, len(parts)-3):], ".")
}

// isZero reports whether a value is the zero value of its field.
func isZero(v any, t *schema.Type) bool {
	switch v := v.(type) {
	case string:
		return v == "" && t.Form != schema.IntOrString
	case json.Number:
		return v == "0"
	case bool:
		return !v
	case map[string]any:
		return len(v) == 0
	}
	return v == nil
}

// field decodes one field of a message, with all its values.
func (d *decoder) field(v value, f *schema.Field, o map[string]any) error {
	if d.values++; d.values > maxValues {
		return fmt.Errorf("the body holds more than %d values: send less at once", maxValues)
	}
	switch f.Type.Form {
	case schema.List:
		item, err := d.value(v, f.Type.Elem, nil)
		if err != nil {
			return err
		}
		list, _ := o[f.Name].([]any)
		o[f.Name] = append(list, item)
		return nil
	case schema.Map:
		entries, ok := o[f.Name].(map[string]any)
		if !ok {
			entries = map[string]any{}
			o[f.Name] = entries
		}
		return d.entry(v, f.Type.Elem, entries)
	}
	read, err := d.value(v, f.Type, o[f.Name])
	if err != nil {
		return err
	}
	if read == nil {
		delete(o, f.Name)
		return nil
	}
	o[f.Name] = read
	return nil
}

// entry decodes an entry of a map: a message with a key and a value.
func (d *decoder) entry(v value, t *schema.Type, entries map[string]any) error {
	if err := want(v, protowire.BytesType); err != nil {
		return err
	}
	const entryKey, entryValue protowire.Number = 1, 2
	key, content := "", any("")
	err := fields(v.bytes, func(n protowire.Number, v value) (err error) {
		switch n {
		case entryKey:
			key, err = text(v)
		case entryValue:
			content, err = d.value(v, t, nil)
		}
		return err
	})
	entries[key] = content
	return err
}

// value decodes a value that is no list. before is the value from an earlier part of the message; a zero time gives nil.
func (d *decoder) value(v value, t *schema.Type, before any) (any, error) {
	switch t.Form {
	case schema.Integer:
		return integer(v, t.Bits)
	case schema.Boolean:
		return v.number != 0, want(v, protowire.VarintType)
	case schema.Text:
		return text(v)
	}
	if err := want(v, protowire.BytesType); err != nil {
		return nil, err
	}
	switch t.Form {
	case schema.Structure:
		o, ok := before.(map[string]any)
		if !ok {
			o = map[string]any{}
		}
		return o, d.message(v.bytes, t, o)
	case schema.Time:
		return timeOf(v.bytes, time.RFC3339)
	case schema.MicroTime:
		return timeOf(v.bytes, "2006-01-02T15:04:05.000000Z07:00")
	case schema.IntOrString:
		return intOrString(v.bytes)
	case schema.Bytes:
		return base64.StdEncoding.EncodeToString(v.bytes), nil
	case schema.FieldSet:
		return fieldSet(v.bytes)
	}
	return nil, fmt.Errorf("no rule for form %d", t.Form)
}

func want(v value, wire protowire.Type) error {
	if v.wire != wire {
		return fmt.Errorf("malformed: wire type %d, expected %d", v.wire, wire)
	}
	return nil
}

func text(v value) (string, error) {
	if !utf8.Valid(v.bytes) {
		return "", fmt.Errorf("not valid UTF-8")
	}
	return string(v.bytes), want(v, protowire.BytesType)
}

// integer decodes int32 and int64, which are sign-extended to 64 bits.
func integer(v value, bits int) (json.Number, error) {
	n := int64(v.number)
	if bits == 32 {
		n = int64(int32(v.number))
	}
	return json.Number(strconv.FormatInt(n, 10)), want(v, protowire.VarintType)
}

// timeOf decodes a meta/v1 Timestamp, which holds seconds since 1970 and nanoseconds. It returns nil for the zero time.
func timeOf(b []byte, layout string) (any, error) {
	const seconds, nanos protowire.Number = 1, 2
	var s, n int64
	err := fields(b, func(number protowire.Number, v value) error {
		switch number {
		case seconds:
			s = int64(v.number)
		case nanos:
			n = int64(int32(v.number))
		}
		return nil
	})
	if err != nil || s == 0 && n == 0 {
		return nil, err
	}
	if layout == time.RFC3339 {
		n = 0 // Kubernetes' times are whole seconds
	}
	t := time.Unix(s, n).UTC()
	if year := t.Year(); year < 1 || year > 9999 {
		return nil, fmt.Errorf("a time in the year %d cannot be written", year)
	}
	return t.Format(layout), nil
}

// intOrString decodes util/intstr IntOrString.
func intOrString(b []byte) (any, error) {
	const kind, number, name protowire.Number = 1, 2, 3
	var isText bool
	var n json.Number = "0"
	var s string
	err := fields(b, func(field protowire.Number, v value) (err error) {
		switch field {
		case kind:
			isText = v.number != 0
		case number:
			n, err = integer(v, 32)
		case name:
			s, err = text(v)
		}
		return err
	})
	if isText {
		return s, err
	}
	return n, err
}

// fieldSet decodes meta/v1 FieldsV1, which contains JSON.
func fieldSet(b []byte) (any, error) {
	const raw protowire.Number = 1
	var content []byte
	err := fields(b, func(n protowire.Number, v value) error {
		if n == raw {
			content = slices.Clone(v.bytes)
		}
		return nil
	})
	if err != nil || content == nil {
		return map[string]any{}, err
	}
	o, _, err := schema.ParseObject(content)
	return o, err
}
