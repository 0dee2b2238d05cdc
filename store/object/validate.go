package object

// Options are the rules that can be switched. The zero value is the default.
type Options struct {
	// RelaxedServiceNames accepts a Service name that begins with a digit (an RFC
	// 1123 label, as Kubernetes does since 1.36); else it is an RFC 1035 label.
	RelaxedServiceNames bool
}

// Validate says everything that is wrong with a new object on which Default, and for
// a Service DefaultFamilies, has been called. Nothing is wrong when it is empty.
func Validate(o Object, opts Options) Errors {
	if review(o) {
		return validateContent(o, nil)
	}
	nameProblems := dns1123SubdomainProblems
	switch o.(type) {
	case *Service:
		nameProblems = dns1035LabelProblems
		if opts.RelaxedServiceNames {
			nameProblems = dns1123LabelProblems
		}
	case *Namespace:
		nameProblems = dns1123LabelProblems
	case *IPAddress:
		nameProblems = addressNameProblems
	}
	return append(validateName(o.GetMeta(), Namespaced(o), nameProblems), validateContent(o, nil)...)
}

// ValidateUpdate says everything that is wrong with putting an object in the place
// of old. Values that stand in old already are not asked for their form again, so
// that what was once accepted can be updated: the name, which cannot change, and
// addresses and prefixes in forms that are not accepted any more.
func ValidateUpdate(updated, old Object, opts Options) Errors {
	if updated.GetTypeMeta().Kind != old.GetTypeMeta().Kind {
		return Join(invalid(root("kind"), updated.GetTypeMeta().Kind, immutableText), Validate(updated, opts))
	}
	errs := validateMetaUpdate(updated.GetMeta(), old.GetMeta())
	switch o := updated.(type) {
	case *Service:
		if before, ok := old.(*Service); ok {
			errs = append(errs, validateServiceChange(o, before)...)
		}
	case *EndpointSlice:
		if before, ok := old.(*EndpointSlice); ok && o.AddressType != before.AddressType {
			errs = append(errs, invalid(addressTypePath, o.AddressType, immutableText)...)
		}
	}
	return Join(errs, validateContent(updated, old))
}

// metaOf is the metadata of an object that may not be there.
func metaOf[T any, P interface {
	*T
	Object
}](o P) *ObjectMeta {
	if o == nil {
		return nil
	}
	return o.GetMeta()
}

// validateContent is all of the rules but those of the name; old is nil for a new
// object.
func validateContent(o, old Object) Errors {
	errs := validateMeta(o.GetMeta())
	switch o := o.(type) {
	case *Service:
		before, _ := old.(*Service)
		errs = append(errs, validateService(o, before)...)
	case *Endpoints:
		before, _ := old.(*Endpoints)
		errs = append(errs, validateEndpoints(o, before)...)
		errs = append(errs, checkEndpointWeights(&o.Metadata, metaOf(before))...)
	case *Pod:
		before, _ := old.(*Pod)
		errs = append(errs, validatePod(o, before)...)
		errs = append(errs, checkEndpointWeights(&o.Metadata, metaOf(before))...)
	case *EndpointSlice:
		before, _ := old.(*EndpointSlice)
		errs = append(errs, validateEndpointSlice(o, before)...)
		errs = append(errs, checkEndpointWeights(&o.Metadata, metaOf(before))...)
	default:
		errs = append(errs, validateOfAPI(o, old)...)
	}
	return errs
}
