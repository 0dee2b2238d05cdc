package interop

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"net/netip"
)

// probePort is where the boxes answer the packets that are counted.
const probePort = 9

// probe has the client send a packet each millisecond to both VIPs, which the box answers.
// The returned function stops it and compares how many were not answered.
func (p *place) probe() (stop func(most int)) {
	p.t.Helper()
	server := p.box.Serve("udp", probePort)
	type flow struct {
		conn           net.Conn
		sent, answered atomic.Int64
	}
	var flows []*flow
	done := make(chan struct{})
	for _, vip := range []string{vip4, vip6} {
		f := &flow{}
		err := p.client.Do(func() (err error) {
			f.conn, err = net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(vip), probePort).String())
			return err
		})
		if err != nil {
			p.t.Fatal(err)
		}
		flows = append(flows, f)
		go func() {
			buf := make([]byte, 256)
			for {
				switch _, err := f.conn.Read(buf); {
				case err == nil:
					f.answered.Add(1)
				case errors.Is(err, net.ErrClosed):
					return
				}
			}
		}()
		go func() {
			ticker := time.NewTicker(time.Millisecond)
			defer ticker.Stop()
			for {
				select {
				case <-done:
					return
				case <-ticker.C:
				}
				if _, err := f.conn.Write([]byte("probe\n")); err == nil {
					f.sent.Add(1)
				}
			}
		}()
	}
	time.Sleep(100 * time.Millisecond)
	return func(most int) {
		p.t.Helper()
		close(done)
		deadline := time.Now().Add(2 * time.Second)
		for _, f := range flows {
			for f.answered.Load() < f.sent.Load() && time.Now().Before(deadline) {
				time.Sleep(10 * time.Millisecond)
			}
			_ = f.conn.Close()
			sent, answered := f.sent.Load(), f.answered.Load()
			p.t.Logf("%s: %d of %d packets answered", f.conn.RemoteAddr(), answered, sent)
			if lost := sent - answered; lost > int64(most) || sent == 0 {
				p.t.Errorf("%s: %d of %d packets lost", f.conn.RemoteAddr(), lost, sent)
			}
		}
		server.Close()
	}
}
