// Package api serves the appliance over HTTP: health, version, status, and waiting
// for a change to arrive in the kernel.
//
//	/healthz /livez   is the appliance alive          ok, or 500 and why
//	/readyz           does it serve what it was given  ok, or 503 and why
//	/version          as Kubernetes' version.Info
//	/svcctl/v1/status wire.Status
//	/svcctl/v1/wait   ?for=synced|ready &timeout=30s &revision=N: answers when it is so
//	/svcctl/v1/env    ?namespace=NS: wire.Environment
//	/svcctl/v1/release POST, by root: lets go what vanished from the manifests in a mass
//
// Everything else answers a Kubernetes Status; /api and /apis, the room of the
// Kubernetes-shaped API, are empty.
//
// Invariants:
//
//   - Who can open the socket can read; only root, and the user the appliance runs as,
//     can change something. The socket is 0660 in a directory of 0750.
//     The caller's uid, gid and pid, as the kernel tells them, are in the context.
//   - One server a socket: a socket somebody answers on is never taken over.
//   - Slow, idle and many clients cost a bounded amount and do not shut others out.
//   - A handler that panics costs its own request, nothing else.
//
// The package must not know how anything is done: it asks a Backend. It never
// imports nft or appliance.
//
//	srv := api.New(api.Config{Socket: "/run/svcctl/svcctl.sock", Version: "v0.1.0"}, backend, log)
//	ln, err := srv.Listen() // fails at once when somebody else serves there
//	err = srv.Serve(ctx, ln) // until ctx is done
package api
