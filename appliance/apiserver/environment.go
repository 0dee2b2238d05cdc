package apiserver

import (
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/env"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/object"
)

// environment returns a function that lists the environment variables of the Services of a
// namespace.
func environment(objects *store.Store) func(namespace string) []wire.Variable {
	return func(namespace string) []wire.Variable {
		var services []*object.Service
		for _, svc := range objects.Services() {
			if svc.Metadata.Namespace == namespace {
				services = append(services, svc)
			}
		}
		var all []wire.Variable
		for _, v := range env.Of(services) {
			all = append(all, wire.Variable(v))
		}
		return all
	}
}
