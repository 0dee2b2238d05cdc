package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	// ttl is the TTL of answers in seconds, positive and negative (RFC 2308, section 5):
	// the default of CoreDNS.
	ttl = 5
	// maxAliases is the longest chain of ExternalName Services that is followed.
	maxAliases = 8
	// minRecord is the smallest size of a record in a message in bytes: a compressed name, the fixed part and an IPv4 address.
	minRecord = 2 + 10 + 4
)

// The timers in the SOA record in seconds, with CoreDNS' values. The zone cannot be transferred, so they have no effect.
const (
	soaRefresh = 7200
	soaRetry   = 1800
	soaExpire  = 86400
)

// reply is the result of a question, from the index or an upstream.
type reply struct {
	rcode         int
	authoritative bool
	authenticated bool // DNSSEC validated it: the AD bit of an upstream
	answer        []dns.RR
	authority     []dns.RR
	additional    []dns.RR
	// outside is set when the name is in none of the server's zones; the other fields are unset then.
	outside bool
	// next is the target of the answer's last CNAME, if it is in another zone.
	next string
}

// inquiry is a DNS question with those properties of the client that the answer depends on.
type inquiry struct {
	dns.Question
	// namespace is the client's namespace, "" for none.
	namespace string
	// limit is the number of records that fit into the answer.
	limit int
}

// answer returns the reply from the index. Until the index is complete, SERVFAIL replaces negative replies.
func (x *index) answer(q inquiry) reply {
	r := x.lookup(q)
	if r.authoritative && (r.rcode == dns.RcodeNameError || len(r.answer) == 0) && !x.complete.Load() {
		return reply{rcode: dns.RcodeServerFailure}
	}
	return r
}

func (x *index) lookup(q inquiry) reply {
	labels := dns.SplitDomainName(strings.ToLower(q.Name))
	if inside, ok := x.inside(labels); ok {
		return x.answerNode(q, x.find(inside), x.soa(x.domain))
	}
	if prefix, ok := parseReverse(labels); ok {
		return x.answerReverse(q, labels, prefix)
	}
	if q.namespace != "" && len(labels) > 0 {
		return x.answerInNamespace(q, labels)
	}
	return reply{outside: true}
}

// inside returns the labels of a name without those of the zone's domain; false if the name is not in the zone.
func (x *index) inside(labels []string) ([]string, bool) {
	n := len(labels) - len(x.labels)
	if n < 0 {
		return nil, false
	}
	for i, label := range x.labels {
		if labels[n+i] != label {
			return nil, false
		}
	}
	return labels[:n], true
}

// answerInNamespace returns the reply to a name outside of the zone for a client in a namespace. It completes the name like the search list of a Pod
// in that namespace: with NAMESPACE.svc.DOMAIN, svc.DOMAIN and DOMAIN. The records have the requested name, without a CNAME, because clients accept
// no other. If no completed name is a Service's, the reply is outside.
func (x *index) answerInNamespace(q inquiry, labels []string) reply {
	under, svc := labels, labels[len(labels)-1] == "svc" // under: the labels below svc.DOMAIN
	if svc {
		under = labels[:len(labels)-1]
	}
	n := x.findService(append(slices.Clone(labels), q.namespace))
	if n == nil || n == empty {
		n = x.findService(under)
	}
	if n != nil && n != empty {
		return x.answerNode(q, n, nil)
	}
	// Until the index is complete a Service's name is not refused, and not looked up elsewhere.
	if _, namespace := x.namespaces.Load(labels[len(labels)-1]); !x.complete.Load() && (len(labels) == 1 || svc || namespace) {
		return x.answerNode(q, nil, nil)
	}
	return reply{outside: true}
}

// answerNode returns the records of a name's node, and follows CNAMEs within the zone. A nil node means NXDOMAIN. soa, if not nil, is
// included in a negative reply (RFC 2308, section 3).
func (x *index) answerNode(q inquiry, n *node, soa dns.RR) reply {
	r := reply{authoritative: true}
	for n != nil && n.alias != "" && q.Qtype != dns.TypeCNAME {
		if len(r.answer) == maxAliases { // a circle, or as good as one
			return reply{rcode: dns.RcodeServerFailure}
		}
		r.answer = append(r.answer, &dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: n.alias})
		labels, ours := x.inside(dns.SplitDomainName(strings.ToLower(n.alias)))
		if !ours {
			r.next = n.alias
			return r
		}
		q.Name, n, soa = n.alias, x.find(labels), x.soa(x.domain)
	}
	var records []dns.RR
	if n == nil {
		r.rcode = dns.RcodeNameError
	} else {
		records = x.at(q, n, x.domain)
		r.additional = x.additional(q, n)
	}
	r.answer = append(r.answer, records...)
	if len(records) == 0 && soa != nil {
		r.authority = []dns.RR{soa}
	}
	return r
}

// at returns the records of the requested type at a node of a zone.
func (x *index) at(q inquiry, n *node, zone string) []dns.RR {
	switch q.Qtype {
	case dns.TypeA:
		return addresses(q.Name, dns.TypeA, n.addrs[0], q.limit)
	case dns.TypeAAAA:
		return addresses(q.Name, dns.TypeAAAA, n.addrs[1], q.limit)
	case dns.TypeSRV:
		return targets(q.Name, n.targets, q.limit)
	case dns.TypeANY:
		// RFC 8482, section 4.2: a short answer instead of all there is.
		return []dns.RR{&dns.HINFO{Hdr: header(q.Name, dns.TypeHINFO), Cpu: "RFC8482"}}
	case dns.TypeCNAME:
		if n.alias != "" {
			return []dns.RR{&dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: n.alias}}
		}
	case dns.TypeTXT:
		if n.text != "" {
			return []dns.RR{&dns.TXT{Hdr: header(q.Name, dns.TypeTXT), Txt: []string{n.text}}}
		}
	case dns.TypeSOA:
		if n.apex {
			return []dns.RR{x.soa(zone)}
		}
	case dns.TypeNS:
		if n.apex {
			return []dns.RR{&dns.NS{Hdr: header(q.Name, dns.TypeNS), Ns: x.serverName()}}
		}
	}
	return nil
}

// additional returns the address records of the targets of SRV and NS records.
func (x *index) additional(q inquiry, n *node) []dns.RR {
	var rrs []dns.RR
	add := func(name string, at *node) {
		rrs = append(rrs, addresses(name, dns.TypeA, at.addrs[0], q.limit)...)
		rrs = append(rrs, addresses(name, dns.TypeAAAA, at.addrs[1], q.limit)...)
	}
	switch {
	case q.Qtype == dns.TypeSRV:
		seen := map[string]bool{}
		for i := range n.targets {
			t := &n.targets[i]
			if len(rrs) >= q.limit {
				break
			}
			if !seen[t.name] {
				seen[t.name] = true
				add(t.name, t.at)
			}
		}
	case q.Qtype == dns.TypeNS && n.apex:
		add(x.serverName(), x.server)
	}
	return rrs
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: ttl}
}

// addresses returns at most limit address records from a random start: this distributes
// clients that take the first one, and clients with truncated answers.
func addresses(name string, kind uint16, ips []net.IP, limit int) []dns.RR {
	if len(ips) == 0 {
		return nil
	}
	start, n := rand.IntN(len(ips)), min(len(ips), limit)
	rrs := make([]dns.RR, n)
	if kind == dns.TypeA {
		block := make([]dns.A, n)
		for i := range block {
			block[i] = dns.A{Hdr: header(name, kind), A: ips[(start+i)%len(ips)]}
			rrs[i] = &block[i]
		}
		return rrs
	}
	block := make([]dns.AAAA, n)
	for i := range block {
		block[i] = dns.AAAA{Hdr: header(name, kind), AAAA: ips[(start+i)%len(ips)]}
		rrs[i] = &block[i]
	}
	return rrs
}

// targets returns at most limit SRV records from a random start, all of one priority and
// weight (RFC 2782).
func targets(name string, list []target, limit int) []dns.RR {
	if len(list) == 0 {
		return nil
	}
	start, n := rand.IntN(len(list)), min(len(list), limit)
	rrs := make([]dns.RR, n)
	for i := range rrs {
		t := &list[(start+i)%len(list)]
		rrs[i] = &dns.SRV{Hdr: header(name, dns.TypeSRV), Weight: 100, Port: t.port, Target: t.name}
	}
	return rrs
}

// serverName returns the name in the zone's NS record.
func (x *index) serverName() string { return "ns.dns." + x.domain }

// soa returns the SOA record of a zone. Its minimum field is the TTL of negative answers.
func (x *index) soa(zone string) dns.RR {
	return &dns.SOA{
		Hdr: header(zone, dns.TypeSOA), Ns: x.serverName(), Mbox: "hostmaster." + x.domain,
		Serial: x.serial.Load(), Refresh: soaRefresh, Retry: soaRetry, Expire: soaExpire, Minttl: ttl,
	}
}

// ServeDNS responds to a message. A panic becomes SERVFAIL.
func (s *Server) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Count(resultFailed)
			s.log.Error("a DNS question could not be answered", "panic", p, "stack", string(debug.Stack()))
			_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)) // the client asks again in any case
		}
	}()
	if err := w.WriteMsg(s.respond(w.RemoteAddr(), q)); err != nil {
		s.log.Debug("a DNS answer was not sent", "client", w.RemoteAddr(), "err", err)
		// Records of an upstream may be such that they cannot be packed again. If the
		// client is gone, this fails too.
		_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeServerFailure))
	}
}

// respond returns the response to a message from an address.
func (s *Server) respond(from net.Addr, q *dns.Msg) *dns.Msg {
	c := s.client(from)
	m := new(dns.Msg).SetReply(q)
	m.RecursionAvailable = c.trusted && len(s.cfg.Upstreams) > 0
	size, opt := dns.MaxMsgSize, q.IsEdns0()
	if c.udp {
		size = dns.MinMsgSize
		if opt != nil {
			size = min(max(int(opt.UDPSize()), dns.MinMsgSize), datagram)
		}
	}
	do := opt != nil && opt.Do()
	result := ""
	switch {
	case len(q.Question) != 1, countEdns0(q) > 1: // RFC 6891, section 6.1.1
		m.Rcode = dns.RcodeFormatError
	case opt != nil && opt.Version() != 0: // RFC 6891, section 6.1.3
		m.Rcode = dns.RcodeBadVers
	case c.udp && !c.local && !s.limiter.allow(c.addr, time.Since(s.started)):
		m.Truncated = true // a client that is there asks again over TCP
		result = resultLimited
	default:
		r := s.reply(c, q, do, size/minRecord+1)
		m.Rcode, m.Authoritative, m.AuthenticatedData = r.rcode, r.authoritative, r.authenticated
		m.Answer, m.Ns, m.Extra = r.answer, r.authority, r.additional
	}
	if opt != nil {
		m.SetEdns0(datagram, do)
	}
	fit(m, size)
	s.cfg.Count(cmp.Or(result, results[m.Rcode], resultFailed))
	return m
}

// results maps response codes to the results that metrics count. All other codes count as resultFailed.
var results = map[int]string{
	dns.RcodeSuccess: resultSuccess, dns.RcodeNameError: resultNoName, dns.RcodeRefused: resultRefused,
	dns.RcodeFormatError: resultBad, dns.RcodeBadVers: resultBad,
}

func countEdns0(m *dns.Msg) int {
	n := 0
	for _, rr := range m.Extra {
		if rr.Header().Rrtype == dns.TypeOPT {
			n++
		}
	}
	return n
}

// fit truncates a message to size bytes. Additional records are dropped first; dropping others sets the TC bit (RFC 2181, section 9).
func fit(m *dns.Msg, size int) {
	if opt := m.IsEdns0(); len(m.Extra) > 0 && m.Len() > size {
		m.Compress = true
		if m.Len() > size {
			m.Extra = nil
			if opt != nil {
				m.Extra = []dns.RR{opt}
			}
		}
	}
	m.Truncate(size)
}

// reply returns the reply to the question in m, from the index or, for clients that may use them, from upstreams. do is the DO bit of
// DNSSEC, limit the number of records that fit.
func (s *Server) reply(c client, m *dns.Msg, do bool, limit int) reply {
	q := m.Question[0]
	switch {
	case q.Qclass != dns.ClassINET, q.Qtype == dns.TypeAXFR, q.Qtype == dns.TypeIXFR:
		return reply{rcode: dns.RcodeRefused}
	}
	r := s.index.answer(inquiry{q, c.namespace, limit})
	// An answer that needs an upstream is given in full to clients that may use upstreams
	// and ask for recursion (RD).
	switch recurse := c.trusted && len(s.cfg.Upstreams) > 0 && m.RecursionDesired; {
	case r.outside && !recurse:
		return reply{rcode: dns.RcodeRefused}
	case r.outside:
		return s.ask(q, m.CheckingDisabled, do)
	case r.next != "" && recurse:
		found := s.ask(dns.Question{Name: r.next, Qtype: q.Qtype, Qclass: q.Qclass}, m.CheckingDisabled, do)
		r.rcode, r.authority, r.answer = found.rcode, found.authority, append(r.answer, found.answer...)
	}
	return r
}

// ask returns the reply of the upstreams; SERVFAIL if none responds. The flags are the CD and DO bits of DNSSEC.
func (s *Server) ask(q dns.Question, checkingDisabled, do bool) reply {
	r, err := s.upstreams.ask(s.ctx, q, checkingDisabled, do)
	if err != nil {
		s.log.Debug("a DNS question was not answered upstream", "name", q.Name, "err", err)
		return reply{rcode: dns.RcodeServerFailure}
	}
	return r
}

// client has the properties of the sender of a question.
type client struct {
	addr netip.Addr
	udp  bool
	// local is set for an address of this host, which no other host can use as its source.
	local bool
	// trusted is set when the client's questions may be forwarded to upstreams.
	trusted   bool
	namespace string // "" when the client is in none
}

// client returns the properties of the sender of a question, by its address.
func (s *Server) client(from net.Addr) client {
	addr, udp := addressOf(from)
	c := client{addr: addr, udp: udp, local: addr.IsLoopback()}
	if local := s.local.Load(); local != nil && (*local)[addr] {
		c.local = true
	}
	c.trusted = c.local
	for _, p := range s.cfg.Internal {
		c.trusted = c.trusted || p.Contains(addr)
	}
	for _, n := range s.namespaces {
		if n.Prefix.Contains(addr) {
			c.namespace = n.Namespace
			break
		}
	}
	return c
}

// addressOf returns the IP address of a UDP or TCP peer, and whether it is UDP; the zero Addr for any other.
func addressOf(peer net.Addr) (addr netip.Addr, udp bool) {
	switch a := peer.(type) {
	case *net.UDPAddr:
		addr, udp = a.AddrPort().Addr(), true
	case *net.TCPAddr:
		addr = a.AddrPort().Addr()
	}
	return addr.Unmap().WithZone(""), udp
}

// Resolvers returns the name servers in a file of the format of resolv.conf(5); none when it cannot be read.
func Resolvers(path string) []netip.Addr {
	conf, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return nil
	}
	var addrs []netip.Addr
	for _, server := range conf.Servers {
		if addr, err := netip.ParseAddr(server); err == nil {
			addrs = append(addrs, addr.WithZone(""))
		}
	}
	return addrs
}

const (
	// tryTimeout is the longest wait for one upstream, askTimeout the longest wait for all of them together. askTimeout is the timeout of glibc's
	// resolver.
	tryTimeout = 2 * time.Second
	askTimeout = 5 * time.Second
	// maxAsking is the largest number of questions that wait for upstreams at a time.
	maxAsking = 256
	// datagram is the largest UDP message in bytes, sent or accepted from upstreams: it passes every network unfragmented (DNS flag day 2020).
	datagram = 1232
)

var errBusy = errors.New("too many questions are with the upstreams already")

// upstreams are the resolvers for names outside of the zones of the server.
type upstreams struct {
	log     *slog.Logger
	servers []netip.AddrPort
	asking  chan struct{}
	// preferred is the index of the server that answered last.
	preferred atomic.Int32
	silent    atomic.Bool // no server answered the last question
}

// ask asks the upstreams in turn until one responds. It returns a failure of an upstream (such as SERVFAIL) only if no other upstream has a better
// response.
func (u *upstreams) ask(ctx context.Context, q dns.Question, checkingDisabled, do bool) (reply, error) {
	select {
	case u.asking <- struct{}{}:
		defer func() { <-u.asking }()
	default:
		return reply{}, errBusy
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	m := new(dns.Msg).SetQuestion(q.Name, q.Qtype)
	m.CheckingDisabled = checkingDisabled
	m.SetEdns0(datagram, do)

	var errs []error
	var failed *dns.Msg
	first := int(u.preferred.Load())
	for i := range u.servers {
		at := (first + i) % len(u.servers)
		answer, err := exchange(ctx, m, u.servers[at].String())
		switch {
		case err != nil:
			errs = append(errs, err)
			continue
		case answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError:
			failed = answer
			continue
		}
		u.preferred.Store(int32(at))
		u.noteAnswer()
		return replyOf(answer), nil
	}
	if failed != nil {
		u.noteAnswer()
		return replyOf(failed), nil
	}
	err := errors.Join(errs...)
	if ctx.Err() != context.Canceled && !u.silent.Swap(true) {
		u.log.Warn("no upstream DNS server answers: names outside the cluster domain are not resolved", "err", err)
	}
	return reply{}, err
}

func (u *upstreams) noteAnswer() {
	if u.silent.Load() && u.silent.Swap(false) {
		u.log.Info("an upstream DNS server answers again")
	}
}

// exchange asks one upstream, over UDP and, when the response is truncated, over TCP.
func exchange(ctx context.Context, m *dns.Msg, server string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	for _, network := range []string{"udp", "tcp"} {
		c := &dns.Client{Net: network, Timeout: tryTimeout}
		switch answer, _, err := c.ExchangeContext(ctx, m, server); {
		case err != nil:
			return nil, fmt.Errorf("ask %s over %s: %w", server, network, err)
		case !answers(answer, m):
			return nil, fmt.Errorf("ask %s over %s: the answer is to another question", server, network)
		case !answer.Truncated:
			return answer, nil
		}
	}
	return nil, fmt.Errorf("ask %s over tcp: the answer is cut off", server)
}

// answers reports whether a message is the response to a question, by its question section. The caller has checked its ID.
func answers(answer, question *dns.Msg) bool {
	if !answer.Response || len(answer.Question) != 1 {
		return false
	}
	a, q := answer.Question[0], question.Question[0]
	return a.Qtype == q.Qtype && a.Qclass == q.Qclass && strings.EqualFold(a.Name, q.Name)
}

// replyOf returns the response of an upstream as a reply.
func replyOf(answer *dns.Msg) reply {
	r := reply{rcode: answer.Rcode, authenticated: answer.AuthenticatedData, answer: answer.Answer, authority: answer.Ns}
	if r.rcode > 0xf { // extended ones are about the exchange with the upstream
		r.rcode = dns.RcodeServerFailure
	}
	for _, rr := range answer.Extra {
		if kind := rr.Header().Rrtype; kind != dns.TypeOPT && kind != dns.TypeTSIG {
			r.additional = append(r.additional, rr)
		}
	}
	return r
}
