// Package healthport serves HTTP on the health-check node ports of Services
// (spec.healthCheckNodePort, for externalTrafficPolicy Local). A load balancer in front of
// several hosts asks them which hosts have local endpoints.
//
// An answer is 200 if the Service has a local endpoint and the rules in the kernel are
// current, else 503. Its headers and body are kube-proxy's:
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
//   - An answer reflects the last Set and SetSynced; changing it reopens no listener.
//   - A listener is open as long as a Service needs it. One that cannot be opened is a
//     Problem, is retried, and affects no other.
//   - api.Serve bounds the number and the time of clients on each listener.
//
// It must not count endpoints or read the state of the kernel: its caller does.
//
//	s := healthport.New(log)
//	go s.Run(ctx)
//	s.Set([]healthport.Service{{Namespace: "default", Name: "web", Port: 31805, LocalEndpoints: 2}})
//	s.SetSynced(true)
package healthport
