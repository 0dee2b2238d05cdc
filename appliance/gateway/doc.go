// Package gateway turns objects of the Gateway API into the Services and EndpointSlices that serve them, and into
// their statuses.
//
// A Gateway becomes a Service of type LoadBalancer with a port for each port and protocol of its listeners. Each
// backend of a TCPRoute or UDPRoute becomes EndpointSlices of that port with a share (object.AnnotationShare). Each
// TLSRoute becomes a Service of its own on each listener, to which the Gateway's Service leads by server name. Rules:
// gateway-api v1.6, standard channel, and docs/gateway.md.
//
// The package is pure: no store, no clock. [Plan] gets the objects through [Objects] and returns values.
package gateway
