// Package apiserver opens the API: the unix socket, the TLS listener with its keys and certificates,
// the objects of the store as Kubernetes serves them, and the answers about the appliance itself (status,
// allocations, journal, environment of Services).
package apiserver
