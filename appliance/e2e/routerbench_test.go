package e2e

import (
	"bytes"
	endian "encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/appliance/netlab"
)

// BenchmarkFileToRouter is the time from a manifest that is renamed into place to the route of its Service in the kernel of
// a router that runs BIRD, and from its removal until the route is gone: by BGP from the announcer, and by a BIRD
// on the box that reads --announce-table. Each address comes once, so that nothing is damped.
func BenchmarkFileToRouter(b *testing.B) {
	for name, prepare := range map[string]func(b *testing.B, s *netlab.Standard, svcctl *netlab.Appliance){
		"announcer": func(b *testing.B, _ *netlab.Standard, svcctl *netlab.Appliance) {
			svcctl.Announcer("--asn", "64512", "--peer", "tor=64513@192.0.2.254").Launch()
		},
		"table": func(b *testing.B, s *netlab.Standard, _ *netlab.Appliance) { birdOn(b, s.GW1, birdOnTheBox) },
	} {
		for _, f := range families {
			b.Run(fmt.Sprintf("by=%s/%s", name, f), func(b *testing.B) {
				s := netlab.NewStandard(b)
				other := standardFlags()
				other["load-balancer-pool"], other["announce-table"] = []string{"198.18.0.0/16", "2001:db8:99::/112"}, []string{"118"}
				svcctl := s.GW1.Appliance(binary, other.args()...)
				writeMany(svcctl.Manifests, 100)
				svcctl.Start()
				(&box{Standard: s}).bird(b, "", "")
				prepare(b, s, svcctl)
				routes := monitorRoutes(b, s.RTR)
				took := map[uint16][]time.Duration{}
				change := func(kind uint16, addr netip.Addr, change func()) {
					start := time.Now()
					change()
					routes(kind, addr)
					took[kind] = append(took[kind], time.Since(start))
				}
				document := func(addr netip.Addr) string {
					return f.service("probe", "type: LoadBalancer", "loadBalancerIP: "+addr.String(), "ports: [{name: p, port: 80}]") + "---\n" + f.slice("probe", "p: 80", s.L1)
				}
				addr := netip.MustParseAddr(f.pick("198.18.0.1", "2001:db8:99::1"))
				for warm := true; b.Loop(); addr = addr.Next() {
					change(unix.RTM_NEWROUTE, addr, func() { svcctl.Manifests.Write("probe.yaml", document(addr)) })
					change(unix.RTM_DELROUTE, addr, func() { svcctl.Manifests.Remove("probe.yaml") })
					if warm { // the session had to come up
						clear(took)
						warm = false
					}
				}
				for kind, what := range map[uint16]string{unix.RTM_NEWROUTE: "there", unix.RTM_DELROUTE: "gone"} {
					if all := took[kind]; len(all) > 0 {
						slices.Sort(all)
						b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "ms-"+what+"-p50")
						b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "ms-"+what+"-p99")
					}
				}
			})
		}
	}
}

// monitorRoutes listens to what becomes of a host's routes (rtnetlink(7)). The returned function waits for
// RTM_NEWROUTE or RTM_DELROUTE of an address.
func monitorRoutes(b *testing.B, h *netlab.Host) func(kind uint16, addr netip.Addr) {
	b.Helper()
	fd := -1
	err := h.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}),
			unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE}))
	})
	if err != nil {
		b.Fatalf("listen to the routes of %s: %v", h.Name, err)
	}
	b.Cleanup(func() { _ = unix.Close(fd) })
	buf := make([]byte, 64<<10)
	return func(kind uint16, addr netip.Addr) {
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				b.Fatalf("no message of type %d about %s: %v", kind, addr, err)
			}
			for msg := buf[:n]; len(msg) >= unix.NLMSG_HDRLEN; {
				size, is := int(endian.NativeEndian.Uint32(msg)), endian.NativeEndian.Uint16(msg[4:])
				if size < unix.NLMSG_HDRLEN || size > len(msg) {
					break
				}
				if is == kind && bytes.Contains(msg[:size], addr.AsSlice()) {
					return
				}
				msg = msg[min(len(msg), (size+3)&^3):]
			}
		}
	}
}
