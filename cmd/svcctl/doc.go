// Command svcctl is the appliance and the tool to ask it: `svcctl serve` programs
// the Services of a directory of manifests into nftables, the other verbs show what
// it did, would do, or undo it. `svcctl help` lists them.
//
// Invariants:
//
//   - One table (root in verbs.go, package settings) makes the flags, the help texts and the
//     completion, so that they cannot differ.
//   - A setting comes from its flag, else its environment variable, else the file
//     given with --config, else its default. All problems are reported at once.
//   - Exit codes: 0 done; 1 the answer is no, or something was refused; 2 usage;
//     3 the appliance cannot be reached. An error is a line on stderr.
//
// The package decides nothing about Services and touches no kernel interface: that
// is package appliance's, or the running appliance's through package api/client.
//
//	svcctl serve --manifests /etc/svcctl/manifests
//	svcctl wait --for synced && svcctl status
package main
