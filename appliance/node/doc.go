// Package node tells what the host is: its addresses, its interfaces and its gateways,
// as the kernel's routing tables have them (rtnetlink), and follows their changes.
//
// It reads and changes nothing. It knows nothing of Services; what an address is good
// for is decided elsewhere.
//
//	facts, err := node.Watch(ctx, log)
//	for f := range facts { ... } // the newest state, each time it differs
package node
