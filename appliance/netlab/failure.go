package netlab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Refusal is a kind of refusal.
type Refusal uint8

const (
	Refused     Refusal = iota + 1 // TCP: a reset answered the SYN
	Unreachable                    // an ICMP error came back
	Timeout                        // nothing came back
	Reset                          // TCP: a reset ended an established connection
	Closed                         // TCP: the connection ended in good order, without the answer
	Other                          // this host did not send the question, or got a strange answer
)

var refusalNames = [...]string{"", "refused by a reset", "ICMP error", "timeout", "connection reset", "closed without an answer", "failed"}

func (r Refusal) String() string { return refusalNames[r] }

// Failure is why a question got no answer.
type Failure struct {
	Refusal Refusal
	// Type and Code are those of the ICMP error, and From is its sender, when Refusal is
	// Unreachable (RFC 792, RFC 4443).
	Type, Code uint8
	From       netip.Addr
	After      time.Duration // since the question was asked
	Err        error
}

func (f *Failure) Error() string {
	detail := ""
	if f.Refusal == Unreachable {
		detail = fmt.Sprintf(" %d/%d from %s", f.Type, f.Code, f.From)
	}
	return fmt.Sprintf("%s%s after %s: %v", f.Refusal, detail, f.After.Round(time.Millisecond), f.Err)
}

func (f *Failure) Unwrap() error { return f.Err }

// PortUnreachable reports whether the refusal is "port unreachable": ICMP 3/3, ICMPv6 1/4.
func (f *Failure) PortUnreachable() bool {
	if f.Refusal != Unreachable {
		return false
	}
	return f.From.Is4() && f.Type == 3 && f.Code == 3 || f.From.Is6() && f.Type == 1 && f.Code == 4
}

// RefusalOf returns the refusal in err; zero when err is no Failure.
func RefusalOf(err error) Refusal {
	var f *Failure
	if errors.As(err, &f) {
		return f.Refusal
	}
	return 0
}

// failure explains the error that ended an exchange, with the help of the ICMP
// errors the Host saw about it.
func (h *Host) failure(about flow, established bool, start time.Time, err error) *Failure {
	f := &Failure{Err: err, After: time.Since(start), Refusal: Other}
	if icmp, ok := h.icmpErrorAbout(about); ok {
		f.Refusal, f.Type, f.Code, f.From = Unreachable, icmp.typ, icmp.code, icmp.from
		return f
	}
	switch {
	case errors.Is(err, unix.ECONNREFUSED) && about.protocol == unix.IPPROTO_TCP:
		f.Refusal = Refused
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		f.Refusal = Reset
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		f.Refusal = Timeout
	case established:
		f.Refusal = Closed
	}
	return f
}
