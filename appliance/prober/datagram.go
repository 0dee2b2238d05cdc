package prober

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/miekg/dns"

	"svcctl.io/svcctl/appliance/health"
)

// maxDatagram bounds the bytes of an answer that are read.
const maxDatagram = 4 << 10

// askUDP sends a datagram. Without an expected answer silence passes, and only a refusal (ICMP port
// unreachable) fails.
func askUDP(c *conn, check *check) health.Result {
	if _, err := c.Write([]byte(check.Send)); err != nil {
		return refusal(err)
	}
	buffer := make([]byte, maxDatagram)
	for {
		n, err := c.Read(buffer)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && check.Expect == "":
			return health.Result{}
		case errors.Is(err, os.ErrDeadlineExceeded) && n == 0:
			return silence(check, "")
		case err != nil && !errors.Is(err, io.EOF): // an empty datagram reads as the end
			return refusal(err)
		case bytes.Contains(buffer[:n], []byte(check.Expect)):
			return health.Result{}
		}
	}
}

// askDNS asks for the addresses of a name. Any answer with NOERROR passes.
func askDNS(c *conn, check *check) health.Result {
	question := new(dns.Msg).SetQuestion(dns.Fqdn(check.Name), dns.TypeA)
	packet, err := question.Pack()
	if err != nil {
		return failed(health.Void, "not asked: the name of the check is no DNS name")
	}
	if _, err := c.Write(packet); err != nil {
		return refusal(err)
	}
	buffer := make([]byte, maxDatagram)
	for {
		n, err := c.Read(buffer)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return silence(check, "")
		case err != nil && !errors.Is(err, io.EOF):
			return refusal(err)
		}
		var reply dns.Msg
		if err := reply.Unpack(buffer[:n]); err != nil || !reply.Response || reply.Id != question.Id {
			continue // not to this question
		}
		if reply.Rcode != dns.RcodeSuccess {
			name, is := dns.RcodeToString[reply.Rcode]
			if !is {
				name = fmt.Sprintf("with code %d", reply.Rcode)
			}
			return failed(health.Refused, "DNS answer "+name)
		}
		return health.Result{}
	}
}
