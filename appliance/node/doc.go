// Package node reads the host's addresses, interfaces and gateways from the kernel
// (rtnetlink), and follows their changes.
//
// It changes nothing, and is independent of Services; the use of an address is decided
// elsewhere.
//
//	facts, err := node.Watch(ctx, log)
//	for f := range facts { ... } // the newest state, each time it differs
package node
