// Package parts connects what follows the Services to the reconcile loop: conntrack, the relay of
// node ports on loopback addresses, the health-check node ports, and DNS. Each is a reconcile.Part
// around a package that does not import the loop. Adding one is a file here and a line where
// package appliance wires them.
package parts
