package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/remote"
)

const (
	// resolvConf is the file with the resolvers to ask when --from has no URL.
	resolvConf = "/etc/resolv.conf"
	// timeout is the longest wait for one resolver. tries is the largest number of times that each resolver is asked.
	timeout, tries = 5 * time.Second, 2
	// least and most bound the time after which a name is looked up again, which is the TTL of the answer. After an empty answer it is at most
	// emptyMost.
	least, most, emptyMost = time.Second, time.Hour, 5 * time.Second
	// soon is the wait before a record with a TTL of 0 is looked up again, since caches count whole seconds.
	soon = 200 * time.Millisecond
	// aliases is the largest number of CNAMEs in a row that are followed by further queries.
	aliases = 8
	// size is the largest response over UDP in bytes (DNS flag day 2020); larger ones are fetched over TCP.
	size = 1232
	// lookups is the number of targets of SRV records that are looked up concurrently.
	lookups = 16
)

// Provider gets endpoints from A, AAAA and SRV records of one set of resolvers.
type Provider struct {
	server string // HOST:PORT of the resolver; empty: use the resolvers of resolv.conf
	conf   string
}

// New returns a Provider that asks the resolver at c.URL, or those of resolv.conf(5).
func New(c provider.Config) (provider.Provider, error) {
	p := &Provider{conf: resolvConf}
	if c.URL == "" {
		return p, nil
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "dns" && u.Scheme != "udp" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%q: must be dns://ADDRESS or dns://ADDRESS:PORT", c.URL)
	}
	if _, err := netip.ParseAddr(u.Hostname()); err != nil {
		return nil, fmt.Errorf("%q: the host must be an IP address", c.URL)
	}
	p.server = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "53"))
	return p, nil
}

// servers returns the resolvers. It reads resolv.conf at each lookup, since that changes with the networks of the host.
func (p *Provider) servers() ([]string, error) {
	if p.server != "" {
		return []string{p.server}, nil
	}
	conf, err := dns.ClientConfigFromFile(p.conf)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, s := range conf.Servers {
		all = append(all, net.JoinHostPort(s, conf.Port))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: has no nameserver", p.conf)
	}
	return all, nil
}

// Follow implements provider.Provider. It looks the name up again when the TTL is over.
func (p *Provider) Follow(ctx context.Context, q provider.Question, take func(provider.Answer)) error {
	params, err := q.Only([]string{"family"})
	if err != nil {
		return err
	}
	l := lookup{types: []uint16{dns.TypeA, dns.TypeAAAA}}
	switch params.Get("family") {
	case "":
	case "ipv4":
		l.types = l.types[:1]
	case "ipv6":
		l.types = l.types[1:]
	default:
		return fmt.Errorf("the parameter family must be ipv4 or ipv6: %.20q", params.Get("family"))
	}
	name := dns.CanonicalName(q.Name)
	if _, is := dns.IsDomainName(name); !is || name == "." {
		return fmt.Errorf("%.300q is no domain name", q.Name)
	}
	var pauses pauses
	for {
		if l.servers, err = p.servers(); err != nil {
			return err
		}
		answer, ttl, err := l.endpoints(ctx, name)
		if err != nil {
			return err
		}
		take(provider.Answer{Endpoints: answer})
		if err := remote.Sleep(ctx, pauses.next(ttl, len(answer) == 0)); err != nil {
			return err
		}
	}
}

// pauses computes the times between two lookups of a name.
type pauses struct {
	counted bool // an answer had a TTL above 0
	zeros   int  // lookups after the pause soon, since the last answer with a TTL above 0
}

// next returns the time until the next lookup, after an answer with this TTL. empty reports that it had no records.
func (p *pauses) next(ttl time.Duration, empty bool) time.Duration {
	switch {
	case empty:
		return min(max(ttl, least), emptyMost)
	case ttl > 0:
		p.zeros, p.counted = 0, true
	case p.counted && p.zeros < int(time.Second/soon):
		p.zeros++
		return soon
	}
	return min(max(ttl, least), most)
}

// lookup asks a set of resolvers for endpoints.
type lookup struct {
	servers []string
	types   []uint16 // the address record types to query: A, AAAA
}

// endpoints returns the endpoints of a name, by SRV records if it begins with "_", and the least TTL of all records used.
func (l *lookup) endpoints(ctx context.Context, name string) (all []provider.Endpoint, ttl time.Duration, err error) {
	if !strings.HasPrefix(name, "_") {
		addresses, ttl, err := l.addresses(ctx, name)
		for _, a := range addresses {
			all = append(all, provider.Endpoint{Address: a.String()})
		}
		return all, ttl, err
	}
	records, ttl, err := l.ask(ctx, name, dns.TypeSRV)
	if err != nil {
		return nil, 0, err
	}
	var targets []*dns.SRV
	var priorities []uint16
	for _, rr := range records {
		if srv, is := rr.(*dns.SRV); is && srv.Target != "." { // RFC 2782: "." is no service
			targets = append(targets, srv)
			priorities = append(priorities, srv.Priority)
		}
	}
	slices.Sort(priorities)
	priorities = slices.Compact(priorities)
	addresses, ttls := make([][]netip.Addr, len(targets)), make([]time.Duration, len(targets))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lookups)
	for i, srv := range targets {
		group.Go(func() (err error) {
			addresses[i], ttls[i], err = l.addresses(ctx, dns.CanonicalName(srv.Target))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, 0, err
	}
	for i, srv := range targets {
		ttl = min(ttl, ttls[i])
		rank, _ := slices.BinarySearch(priorities, srv.Priority)
		for _, a := range addresses[i] {
			all = append(all, provider.Endpoint{
				Address: a.String(), Port: srv.Port, Weight: max(srv.Weight, 1), Priority: uint8(min(rank, 9)),
			})
		}
	}
	return all, ttl, nil
}

// addresses returns the IPv4 and IPv6 addresses of a name and their least TTL. NXDOMAIN for one type counts as no records, since some
// servers return it for a family that a name lacks.
func (l *lookup) addresses(ctx context.Context, name string) (all []netip.Addr, ttl time.Duration, err error) {
	empty := emptyMost
	for _, t := range l.types {
		records, good, err := l.ask(ctx, name, t)
		if err != nil {
			return nil, 0, err
		}
		if len(records) == 0 {
			empty = min(empty, good)
			continue
		}
		if len(all) == 0 || good < ttl {
			ttl = good
		}
		for _, rr := range records {
			var ip net.IP
			switch rr := rr.(type) {
			case *dns.A:
				ip = rr.A
			case *dns.AAAA:
				ip = rr.AAAA
			}
			if a, is := netip.AddrFromSlice(ip); is {
				all = append(all, a.Unmap())
			}
		}
	}
	if len(all) == 0 {
		return nil, empty, nil
	}
	return all, ttl, nil
}

// ask returns the records of type t for a name, following CNAMEs, and the least TTL of them all. Without records it is the TTL of the
// negative response.
func (l *lookup) ask(ctx context.Context, name string, t uint16) (records []dns.RR, ttl time.Duration, err error) {
	ttl = most
	for range aliases {
		m, err := l.exchange(ctx, name, t)
		if err != nil {
			return nil, 0, fmt.Errorf("%s %s: %w", name, dns.TypeToString[t], err)
		}
		aliased := false
		for range m.Answer { // a chain is not longer
			alias := slices.IndexFunc(m.Answer, func(rr dns.RR) bool {
				return rr.Header().Rrtype == dns.TypeCNAME && dns.CanonicalName(rr.Header().Name) == name
			})
			if alias < 0 {
				break
			}
			aliased = true
			ttl = min(ttl, seconds(m.Answer[alias].Header().Ttl))
			name = dns.CanonicalName(m.Answer[alias].(*dns.CNAME).Target)
		}
		for _, rr := range m.Answer {
			if rr.Header().Rrtype == t && dns.CanonicalName(rr.Header().Name) == name {
				records = append(records, rr)
				ttl = min(ttl, seconds(rr.Header().Ttl))
			}
		}
		if len(records) > 0 {
			return records, ttl, nil
		}
		hasSOA, refers := false, false
		for _, rr := range m.Ns {
			switch rr := rr.(type) {
			case *dns.SOA: // RFC 2308: how long the absence is good for
				hasSOA = true
				ttl = min(ttl, seconds(rr.Hdr.Ttl), seconds(rr.Minttl))
			case *dns.NS:
				refers = true
			}
		}
		switch {
		case m.Rcode == dns.RcodeNameError || hasSOA:
			return nil, min(ttl, emptyMost), nil
		case aliased: // an authority of the alias alone
		case refers:
			return nil, 0, fmt.Errorf("%s %s: the server refers to other servers: it is no resolver", name, dns.TypeToString[t])
		default:
			return nil, least, nil
		}
	}
	return nil, 0, fmt.Errorf("%s %s: more than %d aliases", name, dns.TypeToString[t], aliases)
}

func seconds(ttl uint32) time.Duration { return time.Duration(ttl) * time.Second }

// exchange asks the resolvers in turn until one responds. SERVFAIL and REFUSED do not count as responses.
func (l *lookup) exchange(ctx context.Context, name string, t uint16) (*dns.Msg, error) {
	var failed error
	for range tries {
		for _, server := range l.servers {
			m, err := exchange(ctx, server, name, t)
			if err == nil {
				return m, nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			failed = fmt.Errorf("%s: %w", server, remote.Plain(err))
		}
	}
	return nil, failed
}

func exchange(ctx context.Context, server, name string, t uint16) (*dns.Msg, error) {
	q := new(dns.Msg)
	q.SetQuestion(name, t)
	q.SetEdns0(size, false)
	client := dns.Client{Timeout: timeout, UDPSize: size}
	m, _, err := client.ExchangeContext(ctx, q, server)
	if err == nil && m.Rcode == dns.RcodeFormatError { // servers from before EDNS
		q.Extra = nil
		m, _, err = client.ExchangeContext(ctx, q, server)
	}
	if m != nil && m.Truncated { // what it has may not decode, as an error
		client.Net = "tcp"
		m, _, err = client.ExchangeContext(ctx, q, server)
	}
	switch {
	case err != nil:
		return nil, err
	case m.Truncated:
		return nil, errors.New("the answer is cut over TCP, too")
	case m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError:
		return nil, errors.New(dns.RcodeToString[m.Rcode])
	case len(m.Question) != 1 || dns.CanonicalName(m.Question[0].Name) != name || m.Question[0].Qtype != t:
		return nil, errors.New("the answer is to another question")
	}
	return m, nil
}
