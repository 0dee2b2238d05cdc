package rest

import (
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// collectionOf is the collection of a kind.
func (s *Server) collectionOf(k kind.Kind) collection {
	plain := stored{s.store, k.Name}
	switch {
	case k.Name == object.KindEvent && k.APIVersion() == object.APIVersionEvents:
		return eventsOf(plain)
	case k.Name == object.KindEndpoints:
		return endpointsOf(s.store)
	case k.Name == object.KindIPAddress:
		return addressesOf(s.store)
	case k.Name == object.KindIPAddressPool:
		return poolsOf(plain)
	case k.Name == object.KindService && s.conditions != nil:
		return servicesOf(plain, s.conditions)
	case isComputed(k):
		return computed{s.store, s.computed[k.Name]}
	}
	return plain
}

// eventsOf shows Events as events.k8s.io does.
func eventsOf(plain stored) adapted {
	return adapted{plain, func() func(object.Object) object.Object { return eventView }}
}

// eventView is an event as events.k8s.io shows it; nil stays nil.
func eventView(o object.Object) object.Object {
	if e, ok := o.(*object.Event); ok {
		return e.View()
	}
	return o
}
