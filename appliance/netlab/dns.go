package netlab

import (
	"fmt"
	"net"
	"time"

	"github.com/miekg/dns"
)

// Resolve asks a DNS server for the records of a name, as "AAAA", and returns the message in the format of dig. It asks over UDP twice, and
// over TCP if the answer was truncated. Each start of dig costs 70 ms of CPU.
func (h *Host) Resolve(server, name, kind string) (answer string, err error) {
	number, known := dns.StringToType[kind]
	if !known {
		return "", fmt.Errorf("%s is no type of records", kind)
	}
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), number)
	question.AuthenticatedData = true
	question.SetEdns0(1232, false)
	m, err := h.resolve("udp", server, question)
	if err != nil {
		m, err = h.resolve("udp", server, question)
	}
	if err == nil && m.Truncated {
		m, err = h.resolve("tcp", server, question)
	}
	if err != nil {
		return "", fmt.Errorf("host %s: %s %s of %s: %w", h.Name, name, kind, server, err)
	}
	return m.String(), nil
}

func (h *Host) resolve(network, server string, question *dns.Msg) (answer *dns.Msg, err error) {
	client := dns.Client{Net: network, Timeout: 4 * time.Second}
	var c *dns.Conn
	if err = h.Do(func() error {
		c, err = client.Dial(net.JoinHostPort(server, "53"))
		return err
	}); err != nil {
		return nil, err
	}
	defer c.Close()
	answer, _, err = client.ExchangeWithConn(question, c)
	return answer, err
}
