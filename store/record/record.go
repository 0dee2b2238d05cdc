package record

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/index"
	"svcctl.io/svcctl/store/journal"
	"svcctl.io/svcctl/store/object"
	"svcctl.io/svcctl/store/reread"
)

// ObjectPrefix begins the keys of objects in the engine: object/KIND/NAMESPACE/NAME.
const ObjectPrefix = "object/"

// Owner identifies the owner of an object: a file, a controller or the API; see journal.Owner.
type Owner = journal.Owner

// Record is an accepted object. It is immutable.
type Record struct {
	Object object.Object
	Owner  Owner
	// Digest is the digest of the stored form. A new version with an equal digest is equal to the stored one.
	Digest Digest
	// Created is the revision at which the object was created; 0 if it was stored by a program that did not record this. Asked has the requests made
	// later, see Since.
	Created uint64
	Asked   map[string]uint64
	// Withheld is set when the object has values that belong to an older one: it is not programmed.
	Withheld bool
}

// OwnerOf returns the owner of an object; the zero Owner for nil.
func OwnerOf(r *Record) Owner {
	if r == nil {
		return Owner{}
	}
	return r.Owner
}

// ObjectOf returns the object of a record, nil for none.
func ObjectOf(r *Record) object.Object {
	if r == nil {
		return nil
	}
	return r.Object
}

// Digest is a pair of 64-bit hashes of a stored form, with seeds of this process.
type Digest [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func digestOf(text []byte) Digest {
	return Digest{maphash.Bytes(seeds[0], text), maphash.Bytes(seeds[1], text)}
}

// stored is the JSON of an object in the engine.
type stored struct {
	Owner   Owner             `json:"owner"`
	Created uint64            `json:"created,omitempty"`
	Asked   map[string]uint64 `json:"asked,omitempty"`
	Object  object.Object     `json:"object"`
}

// Key returns the engine key of an object.
func Key(ref object.Ref) string {
	return ObjectPrefix + ref.Kind + "/" + ref.Namespace + "/" + ref.Name
}

// RefOfKey returns the object of an engine key; false if it is not that of an object.
func RefOfKey(key string) (object.Ref, bool) {
	parts := strings.SplitN(strings.TrimPrefix(key, ObjectPrefix), "/", 3)
	if !strings.HasPrefix(key, ObjectPrefix) || len(parts) != 3 {
		return object.Ref{}, false
	}
	return object.Ref{Kind: parts[0], Namespace: parts[1], Name: parts[2]}, true
}

// encodings is a pool of buffers for stored forms, most of which are only compared, or copied to their exact length.
var encodings = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Encode returns the stored form, preceded by engine.EntryHeader bytes for the engine, and its digest.
func (r *Record) Encode() (entry []byte, digest Digest, err error) {
	err = r.encoded(func(form []byte) {
		entry, digest = slices.Clone(form), digestOf(form[engine.EntryHeader:])
	})
	return entry, digest, err
}

// Sum returns the digest of the stored form.
func (r *Record) Sum() (digest Digest, err error) {
	err = r.encoded(func(form []byte) { digest = digestOf(form[engine.EntryHeader:]) })
	return digest, err
}

// encoded calls use with the stored form, preceded by engine.EntryHeader bytes. The form is valid until use returns.
func (r *Record) encoded(use func(form []byte)) error {
	buffer := encodings.Get().(*bytes.Buffer)
	defer encodings.Put(buffer)
	buffer.Reset()
	buffer.Write(make([]byte, engine.EntryHeader))
	if err := json.NewEncoder(buffer).Encode(&stored{r.Owner, r.Created, r.Asked, r.Object}); err != nil {
		return fmt.Errorf("encode %s: %w", object.RefOf(r.Object), err)
	}
	use(bytes.TrimSuffix(buffer.Bytes(), []byte("\n")))
	return nil
}

// Decode reads a stored object.
func Decode(pair engine.Pair) (*Record, error) {
	kind, _, _ := strings.Cut(strings.TrimPrefix(pair.Key, ObjectPrefix), "/")
	o, known := New(kind)
	if !known {
		return nil, fmt.Errorf("read stored %s: a newer version has written a kind that this one does not have: start that one", pair.Key)
	}
	if engine.IsSealed(pair.Value) {
		return nil, fmt.Errorf("read stored %s: it is sealed by the key of a fleet: open it with `svcctl fleet leave DATA-DIR --fleet-key-file FILE`, or serve with --fleet", pair.Key)
	}
	value := stored{Object: o}
	if !reread.Into(pair.Value, &value) { // an older form may have other fields
		o, _ = New(kind)
		value = stored{Object: o}
		if err := json.Unmarshal(pair.Value, &value); err != nil {
			return nil, fmt.Errorf("read stored %s: %w", pair.Key, err)
		}
	}
	if value.Object == nil || Key(object.RefOf(value.Object)) != pair.Key {
		return nil, fmt.Errorf("read stored %s: %w", pair.Key, errors.New("it holds another object"))
	}
	return &Record{Object: value.Object, Owner: value.Owner, Digest: digestOf(pair.Value), Created: value.Created, Asked: value.Asked}, nil
}

// New returns an empty object of a stored kind; false for any other kind.
func New(kind string) (object.Object, bool) {
	s := object.StrategyOfKind(kind)
	if s == nil || !s.Stored() {
		return nil, false
	}
	return s.New(), true
}

// CreatedAt returns the creation time of an object; the zero Time if it has none.
func CreatedAt(o object.Object) time.Time {
	if at := o.GetMeta().CreationTimestamp; at != nil {
		return *at
	}
	return time.Time{}
}

// CompareRefs orders objects by namespace, name and kind.
func CompareRefs(a, b object.Ref) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Kind, b.Kind))
}

// RevisionShift is the number of bits by which the time in seconds is shifted left to make the first revision. Revisions overtake the clock only if
// there are more than a million changes a second.
const RevisionShift = 20

// Since is the age of a Service and of its requests for ports, as revisions. Creation times, in
// whole seconds, could not order them.
type Since struct {
	Created uint64 // the revision at which the Service was created
	// Asked has the revisions of requests made after the creation, by port or range on a load balancer IP or an external IP: "TCP 203.0.113.1:80" or
	// "UDP 203.0.113.1:10000-20000".
	Asked map[string]uint64
}

// Of returns the revision at which the Service first asked for a port on a load balancer IP or an external IP (at). That is the revision of its
// creation, unless Asked has a later one.
func (s Since) Of(protocol string, at netip.AddrPort) uint64 {
	if s.Asked != nil && at.Addr().IsValid() {
		return s.of(askKey(protocol, at))
	}
	return s.Created
}

// OfRange returns the revision at which the Service first asked for the range of ports from at.Port() to last; see Of.
func (s Since) OfRange(protocol string, at netip.AddrPort, last uint16) uint64 {
	return s.of(rangeKey(protocol, at, last))
}

func (s Since) of(key string) uint64 {
	if revision, is := s.Asked[key]; is {
		return revision
	}
	return s.Created
}

func askKey(protocol string, at netip.AddrPort) string { return protocol + " " + at.String() }

func rangeKey(protocol string, at netip.AddrPort, last uint16) string {
	return askKey(protocol, at) + "-" + strconv.Itoa(int(last))
}

// Since returns the age of the object. If the revision of its creation is not recorded, it is computed from the creation time, like first revisions.
func (r *Record) Since() Since {
	created := r.Created
	if created == 0 {
		created = uint64(max(0, CreatedAt(Whole(r.Object)).Unix())) << RevisionShift
	}
	return Since{created, r.Asked}
}

// SinceNow returns the age of a version, next, that is written at a revision. before is the version that it replaces; nil if there is none.
func SinceNow(before *Record, next object.Object, revision uint64) Since {
	if before == nil {
		return Since{Created: revision}
	}
	was := before.Since()
	now := Since{Created: was.Created}
	svc, isService := next.(*object.Service)
	if !isService {
		return now
	}
	had := map[string]bool{}
	for _, key := range asks(before.Object.(*object.Service)) {
		had[key] = true
	}
	for _, key := range asks(svc) {
		at := revision
		if had[key] {
			at = was.of(key)
		}
		if at == now.Created {
			continue
		}
		if now.Asked == nil {
			now.Asked = map[string]uint64{}
		}
		now.Asked[key] = at
	}
	return now
}

// asks returns the keys, for Since, of the ports and ranges that a Service asks for on load balancer IPs and external IPs.
func asks(svc *object.Service) (keys []string) {
	for _, addr := range append(index.ExternalIPs(svc), object.Addrs(svc.IngressIPs())...) {
		for _, port := range svc.Spec.Ports {
			keys = append(keys, askKey(port.Protocol, netip.AddrPortFrom(addr, uint16(port.Port))))
		}
		for _, r := range svc.PortRanges() {
			keys = append(keys, rangeKey(r.Protocol, netip.AddrPortFrom(addr, r.First), r.Last))
		}
	}
	return keys
}

// SortByAge sorts items by the age of their objects, the oldest first. Items of the same age are sorted by name. Items without a Record (new objects)
// come last.
func SortByAge[T any](all []T, of func(T) (object.Ref, *Record)) {
	type aged struct {
		since uint64 // the revision of its creation
		ref   object.Ref
		one   T
	}
	keyed := make([]aged, len(all))
	for i, one := range all {
		ref, r := of(one)
		keyed[i] = aged{math.MaxUint64, ref, one}
		if r != nil {
			keyed[i].since = r.Since().Created
		}
	}
	slices.SortFunc(keyed, func(a, b aged) int {
		return cmp.Or(cmp.Compare(a.since, b.since), CompareRefs(a.ref, b.ref))
	})
	for i := range keyed {
		all[i] = keyed[i].one
	}
}

// Packed is an EndpointSlice or a Service in compressed form. They take most of the memory of a box, and a plan only needs those of the Services that
// change. The metadata of a Packed has only name and namespace.
type Packed struct {
	ref     object.Ref
	service string // value of the label kubernetes.io/service-name: the name of an EndpointSlice's Service
	form    []byte // its JSON, compressed by shorten
}

// GetTypeMeta implements object.Object.
func (p *Packed) GetTypeMeta() *object.TypeMeta { return &object.TypeMeta{Kind: p.ref.Kind} }

// GetMeta implements object.Object.
func (p *Packed) GetMeta() *object.ObjectMeta {
	return &object.ObjectMeta{Namespace: p.ref.Namespace, Name: p.ref.Name}
}

// RefOf is object.RefOf for objects that may be packed.
func RefOf(o object.Object) object.Ref {
	if p, is := o.(*Packed); is {
		return p.ref
	}
	return object.RefOf(o)
}

// Packs reports whether objects of a kind can be packed.
func Packs(kind string) bool { return kind == object.KindEndpointSlice || kind == object.KindService }

// Packed returns a copy of the record with its object compressed. A record of a kind that cannot be packed is returned as it is.
func (r *Record) Packed(ref object.Ref) *Record {
	buffer := encodings.Get().(*bytes.Buffer)
	defer encodings.Put(buffer)
	buffer.Reset()
	buffer.Write(common)
	if !Packs(ref.Kind) || json.NewEncoder(buffer).Encode(r.Object) != nil {
		return r
	}
	c, service := *r, strings.Clone(r.Object.GetMeta().Labels[object.LabelServiceName])
	if strings.HasPrefix(ref.Name, service) {
		service = ref.Name[:len(service)] // takes no memory
	}
	buffer.Grow(buffer.Len())
	c.Object = &Packed{ref, service, shorten(bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), buffer.AvailableBuffer())}
	return &c
}

// Whole returns the record with its object decompressed; nil for nil.
func (r *Record) Whole() *Record {
	if _, is := ObjectOf(r).(*Packed); !is {
		return r
	}
	c := *r
	c.Object = Whole(r.Object)
	return &c
}

// Whole returns the object, decompressed if it is packed.
func Whole(o object.Object) object.Object { return Selected(o, "", "") }

// labelOfService begins the text that callers of Selected use to find the EndpointSlices of a Service. A Packed has the value of that label, so it
// need not be decompressed to check for this text.
const labelOfService = `"` + object.LabelServiceName + `":"`

// Selected is Whole for a caller that only wants objects with this name and with this text in their JSON; "" matches any. It may return nil for a
// packed object that does not match.
func Selected(o object.Object, name, text string) object.Object {
	p, is := o.(*Packed)
	if !is {
		return o
	}
	service, is := strings.CutPrefix(text, labelOfService)
	if name != "" && name != p.ref.Name || is && service != p.service+`"` {
		return nil
	}
	if l := last.Load(); l != nil && l.packed == p {
		return l.whole
	}
	buffer := encodings.Get().(*bytes.Buffer)
	defer encodings.Put(buffer)
	all := lengthen(p.form, buffer)
	if !bytes.Contains(all, []byte(text)) {
		return nil
	}
	whole, _ := New(p.ref.Kind)
	if !reread.Into(all, whole) {
		whole, _ = New(p.ref.Kind)
		_ = json.Unmarshal(all, whole) // encoding/json has written it
	}
	last.Store(&unpacked{p, whole})
	return whole
}

// last is the object that was decompressed last: the store, the plan and those that follow it all read a Service that changes.
var last atomic.Pointer[unpacked]

type unpacked struct {
	packed *Packed
	whole  object.Object
}

// Mentions reports whether a Service or an EndpointSlice has one of the addresses; of a packed one, whether any text in its JSON is one. To decompress
// and search that costs less than to decode it.
func Mentions(o object.Object, addrs map[netip.Addr]bool) bool {
	is := func(text string) bool {
		addr, err := netip.ParseAddr(text)
		return err == nil && addrs[addr.Unmap()]
	}
	p, packed := o.(*Packed)
	if !packed {
		return slices.ContainsFunc(index.AddressesOf(o, nil), is)
	}
	buffer := encodings.Get().(*bytes.Buffer)
	defer encodings.Put(buffer)
	for text := range bytes.SplitSeq(lengthen(p.form, buffer), []byte(`"`)) {
		if bytes.LastIndexAny(text, ".:") > 0 && is(string(text)) { // most are no text, but what lies between two
			return true
		}
	}
	return false
}

// common is the dictionary of shorten: text that most Services and EndpointSlices have in their JSON.
var common = []byte(`{"kind":"Service","apiVersion":"v1","metadata":{"name":"","namespace":"default","uid":"","resourceVersion":"","generation":1,` +
	`"creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":""},"annotations":{"kubectl.kubernetes.io/last-applied-configuration":` +
	`"{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"annotations\":{},\"labels\":{\"app\":\"\"},\"name\":\"\",\"namespace\":\"default\"},` +
	`\"spec\":{\"ports\":[{\"name\":\"http\",\"port\":80,\"protocol\":\"TCP\",\"targetPort\":8080}],\"selector\":{\"app\":\"\"}}}\n"}},` +
	`"spec":{"type":"ClusterIP","ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":8080}],"selector":{"app":""},"clusterIP":"10.96.0.1",` +
	`"clusterIPs":["10.96.0.1"],"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","sessionAffinity":"None","internalTrafficPolicy":"Cluster"},` +
	`"status":{"loadBalancer":{}}}` + `{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"","namespace":"default","uid":"","resourceVersion":"",` +
	`"generation":1,"creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"","endpointslice.kubernetes.io/managed-by":"endpointslice-controller.k8s.io",` +
	`"kubernetes.io/service-name":""},"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":"2026-01-01T00:00:00Z"},` +
	`"ownerReferences":[{"apiVersion":"v1","kind":"Service","name":"","uid":"","controller":true,"blockOwnerDeletion":true}]},"addressType":"IPv4",` +
	`"endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true,"serving":true,"terminating":false},"nodeName":"","zone":"",` +
	`"targetRef":{"kind":"Pod","namespace":"default","name":"","uid":""}}],"ports":[{"name":"","protocol":"TCP","port":8080}]}`)

// shortest is the shortest sequence, in bytes, that is replaced by a reference.
const shortest = 5

// places maps the hash of a sequence of shortest bytes to the offset where it last occurred.
type places [1 << placesBits]uint32

const placesBits = 12

func (p *places) swap(text []byte, at int) (before int) {
	hash := binary.LittleEndian.Uint32(text[at:]) * 2_654_435_761 >> (32 - placesBits)
	before, p[hash] = int(p[hash]), uint32(at)
	return before
}

// placesOfCommon is the table of places for the text of the dictionary (the variable common).
var placesOfCommon = sync.OnceValue(func() (p places) {
	for at := range len(common) - shortest {
		p.swap(common, at)
	}
	return p
})

// shorten returns text[len(common):] compressed as in LZ77. The dictionary is common, with which text begins. The form consists of literals and of
// references to earlier bytes. A literal is twice its length followed by its bytes. A reference is twice its length plus one, followed by the
// distance. Numbers are uvarints. The form is made in the empty slice form, and copied.
//
// compress/flate with the same dictionary saves a quarter of the space, but takes 21 us instead of 3 to compress and 4.5 us instead of 2.1 to
// decompress. That would be 6 % of the CPU time of a cold start and 4 % of that of a change.
func shorten(text, form []byte) []byte {
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

// lengthen decompresses what shorten returned. The result may use the memory of the buffer.
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
