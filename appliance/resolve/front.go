package resolve

import (
	"fmt"
	"slices"

	"svcctl.io/svcctl/store/annotation"
)

// KeyUse is the purpose of a Secret.
type KeyUse int

// The uses.
const (
	KeyPair   KeyUse = iota // tls.crt and tls.key, a certificate with its key
	Authority               // ca.crt, certificates of a CA
)

// KeyState is the state of a Secret that relayed ports need.
type KeyState struct {
	// Usable is set when there is something to serve with, possibly from an earlier version of the Secret.
	Usable bool
	// Wrong is the problem with the present Secret, with the next step; "": none.
	Wrong string
	// Soon is the warning that its certificate expires soon, with the next step; "": it does not.
	Soon string
}

// The reasons of problems about TLS and HTTP at relayed ports.
const (
	// ReasonSecretUnusable: a Secret is missing or cannot be used as it is.
	ReasonSecretUnusable = "SecretUnusable"
	// ReasonCertificateExpires: a certificate ends soon.
	ReasonCertificateExpires = "CertificateExpires"
	// ReasonBackendUnchecked: the certificate of endpoints is not verified.
	ReasonBackendUnchecked = "BackendUnchecked"
)

// front returns the settings of a port for TLS and HTTP.
func (r *resolver) front(i int) *annotation.Front {
	if i >= len(r.relayed.Fronts) {
		return &annotation.Front{}
	}
	return &r.relayed.Fronts[i]
}

// refuseFront refuses a port that asks for TLS or HTTP in a way that cannot be given.
func (r *resolver) refuseFront(i int) bool {
	f := r.front(i)
	if f.Key == "" || f.Why == "" {
		return false
	}
	reason := ReasonInvalidAnnotation
	if len(f.Secrets) > 0 || len(f.Services) > 0 || f.Unencrypted {
		reason = reasonTLSNotTerminated
	}
	port := &r.Service.Spec.Ports[i]
	if !f.Misplaced {
		r.isWrong(annotation.Field(f.WhyKey))
	}
	r.refuse(annotation.Field(f.WhyKey), reason, "port %d/%s is not served, rather than passed through as it is: %s", port.Port, port.Protocol, f.Why)
	return true
}

// checkFronts asks about the Secrets of all ports, each once, and tells what is wrong with them. It
// returns which ports lack something to serve with.
func (r *resolver) checkFronts() (lack []bool) {
	lack = make([]bool, len(r.Service.Spec.Ports))
	told := map[string]bool{}
	for i := range lack {
		f := r.front(i)
		if f.Key == "" || f.Why != "" {
			continue
		}
		check := func(key, secret string, use KeyUse) (usable bool) {
			if secret == "" {
				return true
			}
			secret = r.secret(secret)
			r.out.Secrets = append(r.out.Secrets, secret)
			if r.facts.Keys == nil {
				return true
			}
			state := r.facts.Keys(secret, use)
			if id := fmt.Sprint(key, secret, use); !told[id] {
				told[id] = true
				if state.Wrong != "" {
					r.refuse(annotation.Field(key), ReasonSecretUnusable, "Secret %s: %s%s", secret, state.Wrong, refusedUnless(state.Usable))
				}
				if state.Soon != "" {
					r.warn(r.ref, annotation.Field(key), ReasonCertificateExpires, "Secret %s: %s", secret, state.Soon)
				}
			}
			return state.Usable
		}
		// One certificate is enough to serve with: its clients see which one they get.
		usable := len(f.Secrets) == 0
		for _, secret := range f.Secrets {
			usable = check(f.Key, secret, KeyPair) || usable
		}
		usable = check(annotation.TLSClientCA, f.ClientCA, Authority) && usable
		usable = check(annotation.BackendCA, f.BackendCA, Authority) && usable
		lack[i] = !usable
		if f.BackendUnchecked && !told[f.Key] {
			told[f.Key] = true
			r.warn(r.ref, annotation.Field(f.Key), ReasonBackendUnchecked, "certificates of endpoints are not checked, so any server at their address gets the requests: "+
				"name a Secret with the CA in %s, or write \"none\" there", annotation.BackendCA)
		}
	}
	slices.Sort(r.out.Secrets)
	r.out.Secrets = slices.Compact(r.out.Secrets)
	return lack
}

func refusedUnless(usable bool) string {
	if usable {
		return ""
	}
	return "; until then clients are refused"
}

// secret is the "namespace/name" of a Secret of the Service.
func (r *resolver) secret(name string) string { return r.ref.Namespace + "/" + name }

// fronted is the Front of a port for those who relay it, with Secrets and Services as "namespace/name".
func (r *resolver) fronted(i int) *annotation.Front {
	f := *r.front(i)
	if f.Key == "" {
		return nil
	}
	f.Secrets, f.Services = slices.Clone(f.Secrets), slices.Clone(f.Services)
	for j := range f.Secrets {
		f.Secrets[j] = r.secret(f.Secrets[j])
	}
	for _, name := range []*string{&f.ClientCA, &f.BackendCA} {
		if *name != "" {
			*name = r.secret(*name)
		}
	}
	for j := range f.Services {
		f.Services[j].Service = r.secret(f.Services[j].Service)
	}
	return &f
}
