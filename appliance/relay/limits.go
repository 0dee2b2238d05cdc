package relay

import (
	"syscall"
	"time"
)

// limits are the limits and timeouts of a Relay. It has more than 15 fields: one for each of them, so that tests can shorten it.
type limits struct {
	tcp, udp    bothBounds    // concurrent connections, and clients
	pipes       int64         // for splice(2)
	clients     int           // affinity entries of a port
	header      time.Duration // timeout of a header of the PROXY protocol
	dial        time.Duration // timeout of connecting to an endpoint where the Port has none
	hedge       time.Duration // until another endpoint is tried beside one that does not answer, at least
	last        time.Duration // that an endpoint which did not accept is tried after all others
	unreplied   time.Duration // idle timeout of a UDP client without an answer
	replied     time.Duration // idle timeout of a UDP client with an answer, once it goes on for
	stream      time.Duration // this time
	removal     time.Duration // that a port serves after the kernel sends it no new clients
	lastDrain   time.Duration // that a hand-over waits for connections that began during Drain; new clients wait meanwhile
	retry       time.Duration // between attempts to open a listener
	backoff     time.Duration // after a failure to accept or receive
	logInterval time.Duration // between repetitions of a log line
}

// defaults are for the limit of open files. The times of UDP are a little shorter than those of
// conntrack (net.netfilter.nf_conntrack_udp_timeout, 30 s, and nf_conntrack_udp_timeout_stream, 120 s, for
// what lasts 2 s): what a flow leads to never outlives the entry that said so.
func defaults() limits {
	l := limits{
		clients: 1 << 16,
		header:  10 * time.Second, dial: 5 * time.Second, hedge: 250 * time.Millisecond, last: 10 * time.Second, unreplied: 28 * time.Second, replied: 115 * time.Second, stream: 2 * time.Second,
		removal: 10 * time.Second, lastDrain: 2 * time.Second, retry: 5 * time.Second, backoff: 100 * time.Millisecond, logInterval: time.Minute,
	}
	l.descriptors(openFiles())
	return l
}

// bounds limit concurrent connections, or UDP clients.
type bounds struct {
	port  int64 // of one port
	total int64 // of all ports together
}

// bothBounds has the bounds of node ports on loopback and of ports that the kernel redirects;
// neither takes the other's room.
type bothBounds struct{ loopback, redirected bounds }

// What ports that the kernel redirects may have at once, unless the limit of open files is lower.
const (
	// MaxConnections bounds the TCP connections.
	MaxConnections = 20000
	// MaxClients bounds the clients of UDP.
	MaxClients = 20000
	// maxPipes bounds the pipes for splice(2); without one bytes are copied.
	maxPipes = 512
)

// descriptors sets the limits by the limit of open files. Ports that the kernel redirects have two thirds
// of it: a TCP connection takes two descriptors, a UDP client one, a pipe two. Node ports on loopback have a
// sixth. What UDP has TCP has not, so neither starves the other.
func (l *limits) descriptors(files uint64) {
	all := int64(min(files, 1<<30))
	have := all / 3 * 2
	l.pipes = min(maxPipes, have/16/2)
	l.tcp.redirected.total = min(MaxConnections, have*5/8/2)
	l.udp.redirected.total = min(MaxClients, have/4)
	l.tcp.redirected.port, l.udp.redirected.port = l.tcp.redirected.total, l.udp.redirected.total
	l.tcp.loopback = bounds{min(1024, all/24), min(8192, all/24*3)}
	l.udp.loopback = bounds{min(1024, all/24), min(8192, all/24)}
}

// openFiles is the limit of open files of this process (RLIMIT_NOFILE); large where it is unknown.
func openFiles() uint64 {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return 1 << 20
	}
	return files.Cur
}
