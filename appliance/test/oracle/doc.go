// Package oracle says what must become of a packet. It is test support: nothing of
// the product imports it.
//
// Purpose: a second, independent reading of the texts that say what a Service means.
// Decide answers one question, by going through all objects for every packet: given
// these Services, slices and Endpoints on this box, what may happen to this packet?
// The differential tests of package appliance hand the same objects to the product,
// run the same packet through the ruleset that comes out, in the simulator and in a
// kernel, and compare.
//
// Invariants: linear scans only, no index, no cache, nothing shared with the product
// but the types of store/object. A rule that is not obvious says in its comment which
// documented behavior it is: "behavior 48" is item 48 of the list of observable
// behaviors, "docs" is the manual in docs/, "Service page" and "EndpointSlice page"
// are the Kubernetes documentation of these kinds.
//
// It must not import the packages it judges (appliance/resolve, nft), not borrow from
// them, and not become fast at the price of being obvious. Generate makes the worlds
// to ask about: few addresses and few ports, so that things collide.
//
// Example:
//
//	world := oracle.Generate(rand.New(rand.NewPCG(seed, 0)))
//	packet := world.Packets(r, 1)[0]
//	for _, o := range world.Decide(packet) {
//		fmt.Println(o) // delivered to 10.180.0.1:8080, plain
//	}
package oracle
