package reconcile

import "slices"

// secretUsers finds the Services whose ports need a Secret. They are planned again when it changes.
type secretUsers struct {
	by map[string]map[string]bool // Services by Secret
	of map[string][]string        // Secrets by Service
}

func newSecretUsers() secretUsers {
	return secretUsers{by: map[string]map[string]bool{}, of: map[string][]string{}}
}

// set notes what a Service needs.
func (u *secretUsers) set(service string, secrets []string) {
	for _, secret := range u.of[service] {
		if delete(u.by[secret], service); len(u.by[secret]) == 0 {
			delete(u.by, secret)
		}
	}
	delete(u.of, service)
	if len(secrets) == 0 {
		return
	}
	u.of[service] = secrets
	for _, secret := range secrets {
		if u.by[secret] == nil {
			u.by[secret] = map[string]bool{}
		}
		u.by[secret][service] = true
	}
}

// affected are the Services that need one of these Secrets.
func (u *secretUsers) affected(secrets []string) (services []string) {
	for _, secret := range secrets {
		for service := range u.by[secret] {
			services = append(services, service)
		}
	}
	slices.Sort(services)
	return slices.Compact(services)
}
