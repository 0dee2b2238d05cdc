// Package env names the variables of the Services of a namespace in the environment of a
// program: the variables that a kubelet gives the containers of a Pod.
//
// A Service redis-primary with port 6379 at 10.0.0.11 is
//
//	REDIS_PRIMARY_SERVICE_HOST=10.0.0.11
//	REDIS_PRIMARY_SERVICE_PORT=6379
//	REDIS_PRIMARY_PORT=tcp://10.0.0.11:6379
//	REDIS_PRIMARY_PORT_6379_TCP=tcp://10.0.0.11:6379
//	REDIS_PRIMARY_PORT_6379_TCP_PROTO=tcp
//	REDIS_PRIMARY_PORT_6379_TCP_PORT=6379
//	REDIS_PRIMARY_PORT_6379_TCP_ADDR=10.0.0.11
//
// Invariants: Services without a cluster IP have no variables; the order is that of the
// names of the Services, and no name comes twice.
//
// The package is pure. It must not import the store or the API.
//
//	for _, v := range env.Of(services) {
//		fmt.Printf("%s=%s\n", v.Name, v.Value)
//	}
package env
