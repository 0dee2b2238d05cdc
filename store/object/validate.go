package object

// Options are the rules that can be switched. The zero value is the default.
type Options struct {
	// RelaxedServiceNames accepts a Service name that begins with a digit (an RFC
	// 1123 label, as Kubernetes does since 1.36); else it is an RFC 1035 label.
	RelaxedServiceNames bool
}

// Validate returns all errors of a new object on which Default, and for a Service
// DefaultFamilies, has been called. Nothing is wrong when it is empty.
func Validate(o Object, opts Options) Errors {
	s := StrategyOf(o)
	if !s.Stored() { // a review has no name
		return validateContent(o, nil)
	}
	nameProblems := dns1123SubdomainProblems
	if s.nameProblems != nil {
		nameProblems = func(name string) []string { return s.nameProblems(name, opts) }
	}
	return append(validateName(o.GetMeta(), s.Namespaced, nameProblems), validateContent(o, nil)...)
}

// serviceNameProblems returns what is wrong with the name of a Service.
func serviceNameProblems(name string, opts Options) []string {
	if opts.RelaxedServiceNames {
		return dns1123LabelProblems(name)
	}
	return dns1035LabelProblems(name)
}

// ValidateUpdate returns all errors of replacing old by an updated object. Values that stand in
// old already are not asked for their form again, so that what was once accepted can be
// updated: the name, which cannot change, and addresses and prefixes in forms that are not
// accepted any more.
func ValidateUpdate(updated, old Object, opts Options) Errors {
	if updated.GetTypeMeta().Kind != old.GetTypeMeta().Kind {
		return Join(invalid(root("kind"), updated.GetTypeMeta().Kind, immutableText), Validate(updated, opts))
	}
	errs := validateMetaUpdate(updated.GetMeta(), old.GetMeta())
	if s := StrategyOf(updated); s.validateChange != nil && StrategyOf(old) == s {
		errs = append(errs, s.validateChange(updated, old)...)
	}
	return Join(errs, validateContent(updated, old))
}

// validateContent applies all rules but those of the name; old is nil for a new object.
func validateContent(o, old Object) Errors {
	errs := validateMeta(o.GetMeta())
	if s := StrategyOf(o); s.validate != nil {
		errs = append(errs, s.validate(o, old)...)
	}
	return errs
}
