package bgp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// explain describes why there is no session, and what to check.
func explain(p Peer, phase Phase, err error) string {
	var n *notification
	switch {
	case errors.As(err, &n) && n.received:
		return "the peer ended the session: " + n.words(p)
	case errors.As(err, &n):
		return n.detail
	case errors.Is(err, errStopped), errors.Is(err, context.Canceled):
		return errStopped.Error()
	case phase == Connect:
		return explainDial(p, err)
	case errors.Is(err, os.ErrDeadlineExceeded) && phase != Established:
		return "the peer accepted the connection and then sent nothing: it may want packets with TTL 255 (ttl security), or hang"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "the peer stopped in the middle of a message, or takes none"
	case closed(err) && phase == OpenSent:
		return "the peer closed the connection without a reason: it may not be configured for this box's address, or had a connection of its own under way"
	case closed(err):
		return "the peer closed the connection without a reason: it was stopped, restarts, or takes fewer prefixes than we announce"
	}
	return err.Error()
}

func closed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

func explainDial(p Peer, err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the peer refused the connection: no BGP speaker listens there, or it is not configured for this box's address"
	case errors.Is(err, syscall.ECONNRESET):
		return "the peer reset the connection: it is not configured for this box's address"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		words := "there is no way to the peer: its address does not answer, or no route leads there"
		if !p.MultiHop {
			words += "; one that is more than a hop away needs multihop"
		}
		return words
	case errors.Is(err, syscall.EAFNOSUPPORT):
		family := "AF_INET"
		if p.Addr.Addr().Is6() || p.Interface != "" {
			family = "AF_INET6"
		}
		return "this process may open no socket of the peer's family: the sandbox of its unit forbids it, or the kernel lacks it; " +
			"write RestrictAddressFamilies=" + family + " into [Service] with `systemctl edit svcctl-announce`, and restart it"
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return fmt.Sprintf("this box forbids the connection: the sandbox of the unit (write IPAddressAllow=%s into [Service] with `systemctl edit svcctl-announce`), "+
			"or a packet filter", p.Addr.Addr())
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Sprintf("this box does not have the source address %s", p.Source)
	case errors.As(err, &timeout) && timeout.Timeout():
		words := "no answer from the peer: it is down, or a packet filter is in the way"
		if os.Getenv("INVOCATION_ID") != "" { // under systemd (systemd.exec(5)), whose filter drops a SYN in silence
			words += " (IPAddressDeny= of the unit is one: `systemctl cat svcctl-announce`)"
		}
		if p.Password != "" {
			words += "; or no BGP speaker listens there, or it has another password or none (what is not signed with ours is dropped in silence)"
		} else {
			words += "; or it wants a password"
		}
		if p.TTLSecurity > 0 {
			words += "; or it does not send with TTL 255, which ttl security wants"
		}
		return words
	}
	return err.Error()
}

// words explains a NOTIFICATION of the peer.
func (n *notification) words(p Peer) string {
	name := func(names ...string) string {
		if int(n.subcode) < len(names) && names[n.subcode] != "" {
			return names[n.subcode]
		}
		return fmt.Sprintf("error %d, subcode %d", n.code, n.subcode)
	}
	switch n.code {
	case bgp.BGP_ERROR_MESSAGE_HEADER_ERROR:
		return "it could not read a message of ours: " + name("header error", "not synchronized", "bad length", "bad type")
	case bgp.BGP_ERROR_OPEN_MESSAGE_ERROR:
		return name("it did not take our OPEN", "it speaks another version of BGP",
			fmt.Sprintf("it expects another AS than our %d", p.LocalAS), "it does not take our router ID",
			"it does not support a parameter of our OPEN", "authentication failed", fmt.Sprintf("it does not take our hold time of %s", p.Timers.Hold),
			"it does not take our capabilities: compare the address families of both sides", "", "", "", "it expects another role")
	case bgp.BGP_ERROR_UPDATE_MESSAGE_ERROR:
		return fmt.Sprintf("it did not take an UPDATE of ours (subcode %d)", n.subcode)
	case bgp.BGP_ERROR_HOLD_TIMER_EXPIRED:
		return "it received nothing from this box for the hold time"
	case bgp.BGP_ERROR_FSM_ERROR:
		return fmt.Sprintf("it did not expect a message of ours (subcode %d)", n.subcode)
	case bgp.BGP_ERROR_CEASE:
		return name("cease", "we announce more prefixes than it takes", "administrative shutdown", "it has no such peer any more",
			"administrative reset", "it rejected the connection", "its configuration changed", "it has another connection with this box",
			"it is out of resources", "hard reset", "BFD lost this box") + n.message()
	}
	return fmt.Sprintf("error %d, subcode %d", n.code, n.subcode)
}

// message is the text of the peer's operator (RFC 9003).
func (n *notification) message() string {
	withText := n.subcode == bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN || n.subcode == bgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET
	if !withText || len(n.data) < 2 || int(n.data[0]) > len(n.data)-1 {
		return ""
	}
	text := n.data[1 : 1+int(n.data[0])]
	if len(text) == 0 || !utf8.Valid(text) {
		return ""
	}
	return fmt.Sprintf(" (%q)", strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, string(text)))
}

// Error implements error.
func (n *notification) Error() string {
	if n.detail != "" {
		return n.detail
	}
	return fmt.Sprintf("NOTIFICATION %d/%d", n.code, n.subcode)
}
