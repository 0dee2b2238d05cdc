// Package api serves the appliance over HTTP: health, version, status, and waiting
// for a change to arrive in the kernel.
//
//	/healthz /livez   is the appliance alive          ok, or 500 and why
//	/readyz           does it serve what it was given  ok, or 503 and why
//	/version          as Kubernetes' version.Info
//	/svcctl/v1/...    the operations of wire.Operations, with their parameters and answers in package wire
//	/svcctl/v1/token   over the socket: POST a wire.TokenRequest, answers a wire.Token;
//	                   DELETE, by an admin: revokes all tokens
//	/svcctl/v1/commits Config.Commits, for leaves of the fleet and admins: package fleet has the requests
//	/api /apis /openapi Config.Objects: the Kubernetes-shaped API (package rest)
//
// Everything else answers a Kubernetes Status.
//
// Invariants:
//
//   - Over the unix socket the kernel names the user: root, the user the appliance runs as
//     and the members of a group are administrators; other users that the mode of the socket
//     admits may read. Over TLS a bearer token names the user, or a certificate the leaf that a client is; without one there
//     are the health checks and the version, and 401 for everything else.
//   - A leaf may follow commits and report. Only with Config.LeafWrites it may change objects in the name of its admins.
//   - One server a socket: a socket with a listening process is never taken over.
//   - Slow, idle and many clients cost a bounded amount and do not shut others out. Watches
//     have a budget of their own.
//   - Waits and watches end with an answer when the server stops, and do not delay it.
//   - A handler that panics costs its own request, nothing else.
//
// The package answers from its Backend and its endpoints, and never
// imports nft or appliance.
//
//	srv := api.New(api.Config{Socket: api.Socket{Path: "/run/svcctl/svcctl.sock"}, Version: "v0.1.0"}, backend, log)
//	ln, err := srv.Listen() // fails at once when another process serves there
//	err = srv.Serve(ctx, ln) // until ctx is done; ServeTLS for a TCP listener
package api
