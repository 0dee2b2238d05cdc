// Package provider has the types between `svcctl discover` and the sources of endpoints that it reads: DNS, Consul, Nomad, Docker,
// and files of targets. Each is a package of its own beside this one and imports nothing else of ours.
package provider
