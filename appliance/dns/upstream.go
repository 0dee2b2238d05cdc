package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

const (
	// tryTimeout bounds the wait for one upstream's answer, and askTimeout that for all together:
	// as long as glibc's resolver waits.
	tryTimeout = 2 * time.Second
	askTimeout = 5 * time.Second
	// maxAsking bounds the questions that wait for upstreams at a time.
	maxAsking = 256
	// datagram is the largest datagram that is sent and asked for, in bytes: what goes
	// through every network unfragmented, as agreed on DNS flag day 2020.
	datagram = 1232
)

var errBusy = errors.New("too many questions are with the upstreams already")

// upstreams are the resolvers for all other names.
type upstreams struct {
	log     *slog.Logger
	servers []netip.AddrPort
	asking  chan struct{}
	// preferred is the index of the one that answered last.
	preferred atomic.Int32
	silent    atomic.Bool // none of them answered last time
}

// ask asks one upstream after the other until one answers. An upstream's own failure
// (SERVFAIL, for example) is returned only when no other gives a better answer.
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

// exchange asks one upstream, over UDP and, when the answer does not fit, over TCP.
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

// answers reports whether a message is the answer to a question. That its number is the
// question's was checked.
func answers(answer, question *dns.Msg) bool {
	if !answer.Response || len(answer.Question) != 1 {
		return false
	}
	a, q := answer.Question[0], question.Question[0]
	return a.Qtype == q.Qtype && a.Qclass == q.Qclass && strings.EqualFold(a.Name, q.Name)
}

// replyOf takes over what an upstream said.
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
