package convert

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// NFTLB reads the JSON configuration of nftlb and converts its farms. Everything else is recorded as losses.
func NFTLB(text string, options Options) (*Imported, error) {
	r := &nftlb{reading: reading{options: options}, addresses: map[string]value{}}
	docs, err := lenient(text, func(line int, path string) {
		r.lose(nil, line, "%s is there twice: the last one counts", path)
	})
	if err != nil {
		return nil, err
	}
	for _, doc := range docs {
		r.document(doc)
	}
	return r.result()
}

type nftlb struct {
	reading
	addresses map[string]value // the address objects, by name
}

// document reads {"farms": [...], "addresses": [...], "policies": [...]}.
func (r *nftlb) document(doc value) {
	for _, a := range doc.get("addresses").items() {
		r.addresses[a.get("name").text()] = a
	}
	for _, key := range doc.keys() {
		switch at := doc.get(key); key {
		case "addresses":
		case "farms":
			for _, farm := range at.items() {
				r.farm(farm)
			}
		case "policies":
			for _, p := range at.items() {
				r.lose(nil, p.line(), "policy %s (%s) has no counterpart in a manifest: EVERY client may connect; name a set of clients with --source-set of `svcctl serve`, and use it by svcctl.io/source-sets",
					p.get("name").text(), p.get("type").text())
			}
		default:
			r.fail(at.line(), "%q is not understood", key)
		}
	}
	if !doc.get("farms").is() {
		r.fail(doc.line(), "there are no farms: this is no configuration of nftlb")
	}
}

// nftlbIdle lists the values that turn a setting off. Settings with such a value are dropped without a loss.
var nftlbIdle = []string{"", "0", "none", "off", "0x0", "0x00000000", "0/second", "-1"}

// nftlbDefaults has the defaults of settings that nftlb writes out (include/config.h, obj_print_verdict): the lifetime of
// limits, and the verdict on packets over a limit. They are dropped without a loss.
var nftlbDefaults = map[string]string{"limits-ttl": "120", "verdict": "log drop accept"}

// nftlbLost are the settings of farms, addresses and backends without a counterpart.
var nftlbLost = []string{
	"helper", "log", "log-prefix", "log-rtlimit", "mark", "limits-ttl", "new-rtlimit", "new-rtlimit-burst", "new-rtlimit-log-prefix",
	"rst-rtlimit", "rst-rtlimit-burst", "rst-rtlimit-log-prefix", "est-connlimit", "est-connlimit-log-prefix", "tcp-strict", "tcp-strict-log-prefix", "verdict",
	"flow-offload", "intra-connect", "queue", "iface", "oface", "ether-addr", "virtual-ethaddr", "responsettl", "counter-packets", "counter-bytes",
}

// rest records as lost the settings of an object that were not converted: those not in read.
func (r *nftlb) rest(v *Virtual, of value, what string, read ...string) {
	for _, key := range of.keys() {
		at := of.get(key)
		text := strings.TrimSpace(at.text()) // lists of words end with a space
		switch {
		case slices.Contains(read, key):
		case key == "used": // how many farms use an address
		case key == "source-addr" && (text == "" || v.KeepsClient): // it is read in mode snat alone
		case key == "source-addr":
			r.lose(v, at.line(), "source-addr %s of %s is left out: servers see clients as the address of the box towards them; for what servers begin write svcctl.io/egress", text, what)
		case !slices.Contains(nftlbLost, key):
			r.fail(at.line(), "%q is not understood in %s", key, what)
		case slices.Contains(nftlbIdle, text) && len(at.items()) == 0 && (key != "queue" || text != "0"):
		case text != "" && text == nftlbDefaults[key]:
		case strings.HasSuffix(key, "-log-prefix") || key == "log-prefix":
			// the format of a log that is lost itself
		default:
			r.lose(v, at.line(), "%s %s of %s has no counterpart and is left out", key, at.short(), what)
		}
	}
}

// farm converts a farm and its backends into a virtual server.
func (r *nftlb) farm(f value) {
	name := f.get("name").text()
	what := "farm " + name
	v := &Virtual{Line: f.line(), Annotations: map[string]string{}}
	if name == "" {
		r.fail(f.line(), "a farm has no name")
		return
	}
	if state := f.get("state").text(); !slices.Contains([]string{"", "up", "config_error"}, state) {
		r.described(false)
		r.lose(nil, f.line(), "%s is left out: its state is %s", what, state)
		return
	}
	switch mode := f.get("mode"); mode.text() {
	case "snat", "":
	case "dnat":
		v.KeepsClient = true
	case "dsr", "stlsdnat":
		r.lose(v, mode.line(), "mode %s: %s", mode.text(), directText)
	case "local":
		r.described(false)
		r.lose(nil, mode.line(), "%s is left out: mode local has no counterpart", what)
		return
	default:
		r.fail(mode.line(), "mode %q is none of snat, dnat, dsr, stlsdnat, local", mode.text())
	}
	r.scheduler(v, f)
	r.persistence(v, f)
	if p := f.get("priority"); p.is() && p.text() != "1" {
		r.lose(v, p.line(), "priority %s of the farm has no counterpart: the backends of the lowest priority that serve are used", p.text())
	}
	for _, s := range f.get("sessions").items() {
		r.lose(v, s.line(), "the session of client %s has no counterpart", s.get("client").text())
	}
	r.policies(v, f)
	if at := f.get("new-rtlimit"); at.is() {
		r.rate(v, at.line(), "new-rtlimit "+at.text(), r.bound(at))
	}
	for _, b := range f.get("backends").items() {
		r.backend(v, b)
	}
	r.rest(v, f, what, "name", "family", "virtual-addr", "virtual-ports", "mode", "protocol", "scheduler", "sched-param", "persistence", "persist-ttl",
		"priority", "state", "addresses", "backends", "sessions", "policies", "new-rtlimit")
	r.publish(v, name, r.frontends(v, f))
}

// policies records the policies of a farm or of an address as lost.
func (r *nftlb) policies(v *Virtual, of value) {
	for _, p := range of.get("policies").items() {
		r.lose(v, p.line(), "policy %s is not applied: EVERY client may connect; see svcctl.io/source-sets", p.get("name").text())
	}
}

// scheduler sets the balancing algorithm of a virtual service from the scheduler of its farm.
func (r *nftlb) scheduler(v *Virtual, f value) {
	s, param := f.get("scheduler"), strings.Fields(strings.ReplaceAll(f.get("sched-param").text(), "-", " "))
	slices.Sort(param)
	switch s.text() {
	case "weight":
	case "rr", "":
		v.Annotations[object.AnnotationBalance] = object.BalanceRoundRobin
	case "hash", "symhash":
		v.Annotations[object.AnnotationBalance] = object.BalanceMaglev
		switch by := strings.Join(param, " "); {
		case s.text() == "symhash":
			r.lose(v, s.line(), "symhash: the hash is one of the client's address and port alone")
		case by == "srcip" || by == "" || by == "none":
			v.Annotations[object.AnnotationBalance] = object.BalanceSourceHash
			if by != "srcip" {
				r.lose(v, s.line(), "the hash is one of the client's address")
			}
		case by == "srcip srcport":
		case by == "dstip":
			v.Annotations[object.AnnotationBalance] = object.BalanceDestinationHash
		default:
			r.lose(v, s.line(), "a hash of %s has no counterpart: it is one of the client's address and port", by)
		}
	default:
		r.fail(s.line(), "scheduler %q is none of weight, rr, hash, symhash", s.text())
	}
}

// persistence sets how long a client stays with its server, from the persistence of a farm.
func (r *nftlb) persistence(v *Virtual, f value) {
	p := f.get("persistence")
	switch by := strings.TrimSpace(p.text()); by {
	case "", "none":
	case "srcip":
		seconds := int64(60)
		if ttl := f.get("persist-ttl"); ttl.is() {
			n, err := strconv.ParseInt(ttl.text(), 10, 32)
			if err != nil || n < 1 {
				r.fail(ttl.line(), "persist-ttl %q is no number of seconds", ttl.text())
			}
			seconds = n
		}
		r.affinity(v, p.line(), seconds)
	default:
		r.lose(v, p.line(), "persistence by %s has no counterpart: clients are remembered by their addresses alone", by)
	}
}

// backend converts one backend of a farm to a server.
func (r *nftlb) backend(v *Virtual, b value) {
	what := "backend " + b.get("name").text()
	s := Server{Weight: 1}
	var err error
	at := b.get("ip-addr")
	if addr, err := netip.ParseAddr(at.text()); err == nil && addr.IsLoopback() {
		r.lose(v, at.line(), "%s at %s is the box itself, which has no counterpart: write an address that the program listens at", what, addr)
		return
	}
	if s.Addr, err = parseAddr(at.text()); err != nil {
		r.fail(at.line(), "%s: %v", what, err)
		return
	}
	if port := b.get("port"); port.text() != "" && port.text() != "0" {
		if s.Port, err = ParsePort(port.text()); err != nil {
			r.fail(port.line(), "%s: %v", what, err)
		}
	}
	if w := b.get("weight"); w.is() {
		n, err := strconv.ParseUint(w.text(), 10, 16)
		if err != nil {
			r.fail(w.line(), "%s: the weight %q is no number up to %d", what, w.text(), object.MaxWeight)
		}
		s.Weight = uint16(n)
	}
	if p := b.get("priority"); p.is() {
		n, err := strconv.ParseInt(p.text(), 10, 32)
		if err != nil || n < 1 {
			r.fail(p.line(), "%s: the priority %q is no number from 1", what, p.text())
		}
		if n-1 > object.MaxPriority {
			r.lose(v, p.line(), "%s: priorities go to %d: it is %d, not %d", what, object.MaxPriority, object.MaxPriority, n-1)
		}
		s.Priority = uint8(max(0, min(n-1, object.MaxPriority)))
	}
	switch state := b.get("state"); state.text() {
	case "", "up", "available", "config_error":
	case "down":
		r.lose(v, state.line(), "%s was down: it is used; svcctl.io/health-check asks whether it serves", what)
	case "off":
		r.lose(v, state.line(), "%s is off: it has weight 0 instead of %d", what, s.Weight)
		s.Weight = 0
	default:
		r.fail(state.line(), "%s: state %q is none of up, down, off, available", what, state.text())
	}
	if at := b.get("est-connlimit"); at.is() {
		r.limit(v, at.line(), s.Addr, "est-connlimit "+at.text(), r.bound(at))
	}
	r.rest(v, b, what, "name", "ip-addr", "port", "weight", "priority", "state", "est-connlimit")
	v.Servers = append(v.Servers, s)
}

// bound parses a limit, "100" or "100/second".
func (r *nftlb) bound(at value) uint64 {
	text, _, _ := strings.Cut(strings.TrimSpace(at.text()), "/")
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		r.fail(at.line(), "%q is no number", at.text())
	}
	return n
}

// nftlbFrontend is an address that clients connect to, with its ports.
type nftlbFrontend struct {
	addr  netip.Addr
	ports []Port
}

// frontends returns the addresses of a farm with their ports.
func (r *nftlb) frontends(v *Virtual, f value) (list []nftlbFrontend) {
	protocol := f.get("protocol").text()
	if at := f.get("virtual-addr"); at.text() != "" {
		list = append(list, r.frontend(v, at, at.text(), f.get("virtual-ports"), protocol)...)
	}
	for _, a := range f.get("addresses").items() {
		if !a.get("ip-addr").is() {
			named, has := r.addresses[a.get("name").text()]
			if !has {
				r.fail(a.line(), "there is no address %q", a.get("name").text())
				continue
			}
			a = named
		}
		of := cmp.Or(a.get("protocol").text(), protocol)
		list = append(list, r.frontend(v, a, a.get("ip-addr").text(), a.get("ports"), of)...)
		r.policies(v, a)
		r.rest(v, a, "address "+a.get("name").text(), "name", "family", "ip-addr", "ports", "protocol", "policies")
	}
	return list
}

// mostNFTLBPorts is the greatest number of ports of one address that are converted.
const mostNFTLBPorts = 100

// frontend parses an address and its ports, as in 80,443,8000-8010.
func (r *nftlb) frontend(v *Virtual, of value, address string, ports value, protocol string) []nftlbFrontend {
	if addr, err := netip.ParseAddr(address); address == "" || err == nil && addr.IsLoopback() {
		r.lose(v, of.line(), "the address %q is left out: no client reaches it", address)
		return nil
	}
	addr, err := parseAddr(address)
	if err != nil {
		r.fail(of.line(), "%v", err)
		return nil
	}
	protocols := []string{object.ProtocolTCP}
	switch strings.ToLower(protocol) {
	case "", "tcp":
	case "udp", "sctp":
		protocols[0] = strings.ToUpper(protocol)
	case "all":
		protocols = []string{object.ProtocolTCP, object.ProtocolUDP, object.ProtocolSCTP}
	default:
		r.fail(of.line(), "protocol %q is unknown: use tcp, udp, sctp or all", protocol)
	}
	text := ports.text()
	if text == "" || text == "*" || text == "0" || text == "any" {
		r.lose(v, of.line(), "all ports of %s have no counterpart: the address is left out; list the ports", addr)
		return nil
	}
	front := nftlbFrontend{addr: addr}
	for part := range strings.SplitSeq(text, ",") {
		from, to, err := parsePorts(strings.TrimSpace(part))
		switch {
		case err != nil:
			r.fail(ports.line(), "%q is no port and no range of ports", part)
			return nil
		case int(to-from)+1+len(front.ports) > mostNFTLBPorts:
			r.lose(v, ports.line(), "more than %d ports of %s: the address is left out", mostNFTLBPorts, addr)
			return nil
		}
		for port := int(from); port <= int(to); port++ {
			for _, p := range protocols {
				front.ports = append(front.ports, Port{Protocol: p, Port: uint16(port)})
			}
		}
	}
	return []nftlbFrontend{front}
}

// publish adds a Service for each set of ports of a farm.
func (r *nftlb) publish(v *Virtual, name string, fronts []nftlbFrontend) {
	r.described(len(fronts) > 0)
	if len(fronts) == 0 {
		r.out.Losses = append(r.out.Losses, v.Losses...)
		r.lose(nil, v.Line, "farm %s is left out: no address of it has a counterpart", name)
		return
	}
	var made []*Virtual
	for _, f := range fronts {
		if i := slices.IndexFunc(made, func(o *Virtual) bool { return slices.Equal(o.Ports, f.ports) }); i >= 0 {
			made[i].ExternalIPs = addOnce(made[i].ExternalIPs, f.addr)
			continue
		}
		one := v.part(len(made), r.name(name), f.ports)
		one.ExternalIPs = []netip.Addr{f.addr}
		made = append(made, one)
	}
	for _, one := range made {
		r.add(one)
	}
}

// A value is a node of a YAML or JSON document with its position. The zero value is an absent node.
type value struct {
	of   *manifest.Value
	path string
	data any // map[string]any, []any, string, json.Number, bool or nil
}

// lenient parses all documents of a text. It accepts duplicate keys in a JSON object: the last one counts, as in nftlb, and the function twice is
// called with the line and path of each duplicate.
func lenient(text string, twice func(line int, path string)) (list []value, err error) {
	values, problem := manifest.PlacedValues([]byte(text), manifest.DefaultLimits())
	if problem != nil {
		return nil, &Error{Line: max(problem.Line, 1), Text: problem.Message}
	}
	for i := range values {
		v := &values[i]
		list = append(list, value{of: v, data: v.Data})
		for _, path := range v.Duplicates {
			line, _ := v.Position(path)
			twice(line, path)
		}
	}
	return list, nil
}

// line returns the line of the value, or of its nearest present ancestor.
func (v value) line() int {
	line, _ := v.of.Position(v.path)
	return line
}

// get returns the value of a key.
func (v value) get(key string) value {
	path := key
	if v.path != "" {
		path = v.path + "." + key
	}
	m, _ := v.data.(map[string]any)
	return value{v.of, path, m[key]}
}

// keys returns the keys of a mapping, sorted.
func (v value) keys() []string {
	m, _ := v.data.(map[string]any)
	return slices.Sorted(maps.Keys(m))
}

// items returns the items of a list.
func (v value) items() (list []value) {
	all, _ := v.data.([]any)
	for i, item := range all {
		list = append(list, value{v.of, fmt.Sprintf("%s[%d]", v.path, i), item})
	}
	return list
}

// is reports whether the value is present.
func (v value) is() bool { return v.data != nil }

// text returns a string, number or bool as text; "" for any other value.
func (v value) text() string {
	switch d := v.data.(type) {
	case string:
		return d
	case json.Number:
		return d.String()
	case bool:
		return strconv.FormatBool(d)
	}
	return ""
}

// short returns the value as text on one line, for messages.
func (v value) short() string {
	if text := v.text(); text != "" {
		return text
	}
	form, err := json.Marshal(v.data)
	if err != nil {
		return "?"
	}
	const most = 120
	if len(form) > most {
		return string(form[:most]) + "..."
	}
	return string(form)
}
