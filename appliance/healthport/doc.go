// Package healthport answers on the health-check node ports of Services: the HTTP
// servers by which a load balancer in front of several boxes learns which of them have
// endpoints of their own (spec.healthCheckNodePort, for externalTrafficPolicy Local).
//
// An answer is 200 when the Service has a local endpoint and the rules in the kernel
// are current, else 503; its body and headers have the fields of kube-proxy's:
//
//	HTTP/1.1 200 OK
//	Content-Type: application/json
//	X-Content-Type-Options: nosniff
//	X-Load-Balancing-Endpoint-Weight: 2
//
//	{"service":{"namespace":"default","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}
//
// Invariants:
//
//   - An answer is what Set and SetSynced said last; no listener is reopened for it.
//   - A listener is there as long as a Service needs it. One that cannot be opened is a
//     Problem, is tried again, and disturbs no other.
//   - Clients are bounded in number and time, on each listener, as api.Serve bounds them.
//
// It must not count endpoints or judge the kernel itself: it is told.
//
//	s := healthport.New(log)
//	go s.Run(ctx)
//	s.Set([]healthport.Service{{Namespace: "default", Name: "web", Port: 31805, LocalEndpoints: 2}})
//	s.SetSynced(true)
package healthport
