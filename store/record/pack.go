package record

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"slices"
	"sync"

	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/reread"
)

// Packed is an EndpointSlice in a short form: objects of this kind are most of the memory of a box, and a plan needs those of the
// Services alone that change. Its metadata has the name and the namespace alone.
type Packed struct {
	ref  object.Ref
	form []byte // of its JSON, see shorten
}

// GetTypeMeta implements object.Object.
func (p *Packed) GetTypeMeta() *object.TypeMeta { return &object.TypeMeta{Kind: p.ref.Kind} }

// GetMeta implements object.Object.
func (p *Packed) GetMeta() *object.ObjectMeta {
	return &object.ObjectMeta{Namespace: p.ref.Namespace, Name: p.ref.Name}
}

// Packed returns the record of an object with that packed.
func (r *Record) Packed(ref object.Ref) *Record {
	buffer := encodings.Get().(*bytes.Buffer)
	defer encodings.Put(buffer)
	buffer.Reset()
	buffer.Write(common)
	if _, is := r.Object.(*object.EndpointSlice); !is || json.NewEncoder(buffer).Encode(r.Object) != nil {
		return r
	}
	c := *r
	c.Object = &Packed{ref, shorten(bytes.TrimSuffix(buffer.Bytes(), []byte("\n")))}
	return &c
}

// Whole returns the record with the object as it was before it was packed; nil for nil.
func (r *Record) Whole() *Record {
	if _, is := ObjectOf(r).(*Packed); !is {
		return r
	}
	c := *r
	c.Object = Whole(r.Object)
	return &c
}

// Whole returns an object as it was before it was packed.
func Whole(o object.Object) object.Object {
	p, is := o.(*Packed)
	if !is {
		return o
	}
	buffer := encodings.Get().(*bytes.Buffer)
	defer encodings.Put(buffer)
	text := lengthen(p.form, buffer)
	slice := new(object.EndpointSlice)
	if !reread.Into(text, slice) {
		*slice = object.EndpointSlice{}
		_ = json.Unmarshal(text, slice) // encoding/json has written it
	}
	return slice
}

// common is a text that begins the texts of all objects, so that what they have in common is a reference to it.
var common = []byte(`{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"","namespace":"default","uid":"","resourceVersion":"",` +
	`"generation":1,"creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"","endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io",` +
	`"kubernetes.io/service-name":""},"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2026-01-01T00:00:00Z"},` +
	`"ownerReferences":[{"apiVersion":"v1","kind":"Service","name":"","uid":"","controller":true,"blockOwnerDeletion":true}]},"addressType":"IPv4",` +
	`"endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"","zone":"",` +
	`"targetRef":{"kind":"Pod","namespace":"default","name":"","uid":""}}],"ports":[{"name":"","protocol":"TCP","port":8080}]}`)

// shortest is the length of the shortest reference.
const shortest = 5

// places are where sequences of so many bytes were last, by a hash of them.
type places [1 << 11]uint32

func (p *places) swap(text []byte, at int) (before int) {
	hash := binary.LittleEndian.Uint32(text[at:]) * 2_654_435_761 >> (32 - 11)
	before, p[hash] = int(p[hash]), uint32(at)
	return before
}

// placesOfCommon are those of common.
var placesOfCommon = sync.OnceValue(func() (p places) {
	for at := range len(common) - shortest {
		p.swap(common, at)
	}
	return p
})

// shorten returns a form of the bytes behind common: literal bytes, and references to bytes before, as LZ77 has them. A literal is twice
// its length and the bytes, a reference twice its length plus one and the distance; numbers are uvarints. compress/flate with common as its
// dictionary takes 21 µs instead of 3 (4.5 instead of 2.1 back) for a quarter less: 6 % of the CPU time of a cold start, 4 % of a change.
func shorten(text []byte) (form []byte) {
	seen := placesOfCommon()
	from := len(common) // of the bytes that are not in the form yet
	literal := func(to int) {
		if to > from {
			form = append(binary.AppendUvarint(form, uint64(to-from)<<1), text[from:to]...)
		}
	}
	for at := from; at+shortest <= len(text); {
		before, n := seen.swap(text, at), 0
		for at+n < len(text) && text[before+n] == text[at+n] {
			n++
		}
		if n < shortest {
			at++
			continue
		}
		literal(at)
		form = binary.AppendUvarint(binary.AppendUvarint(form, uint64(n)<<1|1), uint64(at-before))
		at += n
		from = at
	}
	literal(len(text))
	return slices.Clone(form)
}

// lengthen is the reverse of shorten. The text may be in the buffer.
func lengthen(form []byte, buffer *bytes.Buffer) []byte {
	buffer.Reset()
	text := append(buffer.AvailableBuffer(), common...)
	number := func() int {
		n, size := binary.Uvarint(form)
		form = form[size:]
		return int(n)
	}
	for len(form) > 0 {
		n := number()
		if n&1 == 0 {
			text, form = append(text, form[:n>>1]...), form[n>>1:]
			continue
		}
		for from := len(text) - number(); n > 1; n, from = n-2, from+1 {
			text = append(text, text[from])
		}
	}
	buffer.Write(text) // so that the next one has room
	return text[len(common):]
}
