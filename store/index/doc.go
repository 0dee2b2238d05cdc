// Package index finds objects by what belongs together: the EndpointSlices and Endpoints of a Service, the Pods
// that it selects, the Services with an endpoint or an external IP at an address. Its cost is that of the objects asked
// about, not of all. It is not safe for concurrent use while it changes.
package index
