package dns

import (
	"cmp"
	"net"
	"net/netip"
	"runtime/debug"
	"time"

	"github.com/miekg/dns"
)

// ServeDNS implements dns.Handler.
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

// respond returns the response to a message.
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
	s.cfg.Count(cmp.Or(result, resultOf(m.Rcode)))
	return m
}

// resultOf returns the result for a response code.
func resultOf(rcode int) string {
	switch rcode {
	case dns.RcodeSuccess:
		return resultSuccess
	case dns.RcodeNameError:
		return resultNoName
	case dns.RcodeRefused:
		return resultRefused
	case dns.RcodeFormatError, dns.RcodeBadVers:
		return resultBad
	}
	return resultFailed
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

// fit truncates a message to size bytes. Dropping additional records is silent; dropping
// others sets the TC bit (RFC 2181, section 9).
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

// reply answers a question from the index, or from upstreams where that is allowed.
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

// ask asks the upstreams.
func (s *Server) ask(q dns.Question, checkingDisabled, do bool) reply {
	r, err := s.upstreams.ask(s.ctx, q, checkingDisabled, do)
	if err != nil {
		s.log.Debug("a DNS question was not answered upstream", "name", q.Name, "err", err)
		return reply{rcode: dns.RcodeServerFailure}
	}
	return r
}

// client describes the sender of a question.
type client struct {
	addr netip.Addr
	udp  bool
	// local means that it is on this host: no other host can send from its address.
	local bool
	// trusted means that its questions may go to upstreams.
	trusted   bool
	namespace string // "" when it is in none
}

// client classifies the sender of a question by its address.
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

// addressOf returns the address of a UDP or TCP peer; the zero Addr for any other.
func addressOf(peer net.Addr) (addr netip.Addr, udp bool) {
	switch a := peer.(type) {
	case *net.UDPAddr:
		addr, udp = a.AddrPort().Addr(), true
	case *net.TCPAddr:
		addr = a.AddrPort().Addr()
	}
	return addr.Unmap().WithZone(""), udp
}

// Resolvers are the name servers in a file of the form of resolv.conf(5); none when it cannot be
// read.
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
