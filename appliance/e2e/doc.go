// Package e2e tries the appliance from outside: the program svcctl, manifests in a
// directory, and real packets between network namespaces.
//
// It holds tests alone, named by the number of an observable behavior. Behaviors that a script
// of appliance/test/script asserts have none. Each test has a network and an appliance of its
// own, so tests run at the same time and in any order. Unless a test says otherwise it asserts for IPv4
// and for IPv6: who answered, on which port, whose address the server saw, and which
// refusal came back.
//
// A test knows the program by its command line, its log and what `nft` lists. It must
// not import the packages the program is made of.
//
//	func TestNNN_all_endpoints_answer(t *testing.T) {
//		b := newBox(t, nil)
//		b.write("web.yaml", func(f family) []string {
//			return []string{
//				f.service("web", "clusterIP: "+f.vip(41), "ports: [{name: p80, port: 80}]"),
//				f.slice("web", "p80: 80", b.L1, b.R1),
//			}
//		})
//		b.svcctl.Start()
//		b.each(t, func(t *testing.T, b *box, f family) {
//			b.reaches(t, b.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, b.L1, b.R1)...)
//		})
//	}
package e2e
