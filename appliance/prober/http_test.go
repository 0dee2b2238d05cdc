package prober

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"svcctl.io/svcctl/appliance/health"
)

// secret is in everything that a scripted server says beside the protocol. No Result has it.
const secret = "s3cr3t"

func TestHTTP(t *testing.T) {
	ok := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for name, c := range map[string]struct {
		script func(net.Conn)
		check  func(*health.Check)
		want   health.Outcome
		why    string
	}{
		"passes":            {script: say(ok)},
		"HTTP/1.0":          {script: say("HTTP/1.0 200 " + secret + "\r\n\r\n")},
		"no end of body":    {script: say("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")},
		"after 103":         {script: say("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok)},
		"endless 103":       {script: say(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 9)), want: health.Refused, why: "the answer is not an HTTP answer"},
		"status 500":        {script: say("HTTP/1.1 500 " + secret + "\r\n\r\n" + secret), want: health.Refused, why: "HTTP status 500"},
		"status of choice":  {script: say("HTTP/1.1 418 Teapot\r\n\r\n"), check: func(c *health.Check) { c.Status = "200,410-420" }},
		"status not chosen": {script: say(ok), check: func(c *health.Check) { c.Status = "204,300-399" }, want: health.Refused, why: "HTTP status 200"},
		"redirect":          {script: say("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\n\r\n"), check: func(c *health.Check) { c.Status = "200" }, want: health.Refused, why: "HTTP status 302"},
		"not HTTP":          {script: say("SSH-2.0-" + secret + "\r\n"), want: health.Refused, why: "the answer is not an HTTP answer"},
		"closes":            {script: readAndEnd, want: health.Refused, why: "connection closed before an HTTP answer"},
		"closes in the header": {script: func(c net.Conn) { readHead(c); _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nA: "+secret) },
			want: health.Refused, why: "connection closed before an HTTP answer"},
		"reset in the answer": {script: resetInAnswer, want: health.Refused, why: "connection reset by peer"},
		"endless header": {script: func(c net.Conn) {
			readHead(c)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for i := 0; ; i++ {
				if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, secret); err != nil {
					return
				}
			}
		}, want: health.Refused, why: "the HTTP header is longer than 16 KiB"},
		"hangs after accept": {script: hang, check: func(c *health.Check) { c.Timeout = 300 * time.Millisecond }, want: health.Silent, why: "connected, no answer in 300ms"},
		"a byte each 100 ms": {script: func(c net.Conn) {
			for _, b := range []byte(ok) {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		}, check: func(c *health.Check) { c.Timeout = 500 * time.Millisecond }, want: health.Silent, why: "connected, no answer in 500ms"},
		"expected": {script: say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nali\r\n2\r\nve\r\n"),
			check: func(c *health.Check) { c.Expect = "alive" }},
		"not expected": {script: say(ok), check: func(c *health.Check) { c.Expect = "alive" }, want: health.Refused, why: "the body does not have the expected text"},
		"expected too late": {script: say("HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n" + strings.Repeat(secret, 1000) + "alive"),
			check: func(c *health.Check) { c.Expect = "alive" }, want: health.Refused, why: "the first 4 KiB of the body do not have the expected text"},
		"a path like a header": {script: say(ok), check: func(c *health.Check) { c.Path = "/a\r\nX: y" }, want: health.Void,
			why: "not asked: the path of the check has a blank or a control character"},
		"a header with a line": {script: say(ok), check: func(c *health.Check) { c.Headers = "X: a\rY: b\n" }, want: health.Void,
			why: "not asked: a header of the check is not valid"},
		"a host with a line": {script: say(ok), check: func(c *health.Check) { c.Host = "a\r\nX: y" }, want: health.Void,
			why: "not asked: the host of the check has a control character"},
		"a header of ours": {script: say(ok), check: func(c *health.Check) { c.Headers = "Host: b\n" }, want: health.Void,
			why: "not asked: the header host of the check is not its to set"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, "127.0.0.1:0", c.script)
			check := checkOf(health.HTTP)
			if c.check != nil {
				c.check(&check)
			}
			r, stats := first(t, health.Target{Addr: s.addr, Check: check})
			if r.Outcome != c.want || r.Why != c.why {
				t.Errorf("outcome %d, %q; want %d, %q", r.Outcome, r.Why, c.want, c.why)
			}
			probes := int64(0) // one, unless this host stood still meanwhile
			if c.want != health.Void {
				for _, n := range stats.Checks[health.HTTP] {
					probes += int64(n)
				}
			}
			if asked := s.accepted.Load(); asked != probes {
				t.Errorf("the server was asked %d times by %d probes", asked, probes)
			}
		})
	}
}

func readAndEnd(c net.Conn) { readHead(c) }

func resetInAnswer(c net.Conn) {
	readHead(c)
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nX: "+secret)
	_ = c.(*net.TCPConn).SetLinger(0)
}

// A body of 10 MB is not read: the server cannot send it, and is rid of the connection at once.
func TestLongBody(t *testing.T) {
	sent := make(chan int64, 1)
	s := serve(t, "[::1]:0", func(c net.Conn) {
		readHead(c)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
		n, _ := io.Copy(c, strings.NewReader(strings.Repeat("x", 10_000_000)))
		sent <- n
	})
	r, _ := first(t, health.Target{Addr: s.addr, Check: checkOf(health.HTTP)})
	if r.Outcome != health.Pass {
		t.Errorf("%+v, want a pass", r)
	}
	select {
	case n := <-sent:
		if n == 10_000_000 {
			t.Error("the whole body was taken")
		}
	case <-time.After(patience):
		t.Error("the connection is still there")
	}
}

// What goes out is this, to the byte: nothing of the host's environment is in it.
func TestRequest(t *testing.T) {
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	for _, host := range loopbacks {
		heads := make(chan string, 1)
		s := serve(t, net.JoinHostPort(host, "0"), func(c net.Conn) {
			heads <- readHead(c)
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
		})
		check := checkOf(health.HTTP)
		check.Path = "/healthz?full=1"
		check.Headers = "X-Token: a:b \nUser-Agent: probe\n"
		if r, _ := first(t, health.Target{Addr: s.addr, Check: check}); r.Outcome != health.Pass {
			t.Errorf("%s: %+v, want a pass", host, r)
		}
		want := "GET /healthz?full=1 HTTP/1.1\r\nHost: " + s.addr.String() + "\r\nX-Token: a:b\r\nUser-Agent: probe\r\nAccept: */*\r\nConnection: close\r\n\r\n"
		if got := <-heads; got != want {
			t.Errorf("%s: the server got\n%q, want\n%q", host, got, want)
		}
	}
}
