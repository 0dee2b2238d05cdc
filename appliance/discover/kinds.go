package discover

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"svcctl.io/svcctl/appliance/discover/consul"
	"svcctl.io/svcctl/appliance/discover/dns"
	"svcctl.io/svcctl/appliance/discover/docker"
	"svcctl.io/svcctl/appliance/discover/nomad"
	"svcctl.io/svcctl/appliance/discover/provider"
	"svcctl.io/svcctl/appliance/discover/targets"
)

// kinds are the kinds of providers.
var kinds = map[string]func(provider.Config) (provider.Provider, error){
	"consul": consul.New, "dns": dns.New, "docker": docker.New, "nomad": nomad.New, "targets": targets.New,
}

// providerName is the form of names of providers: they are in the names of Leases.
var providerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// Open returns the provider of a text [NAME=]KIND[+URL]. It reaches nothing yet.
func Open(text, node string, env map[string]string) (p Provider, err error) {
	name, spec, named := strings.Cut(text, "=")
	if !named || strings.ContainsAny(name, "+:/") { // an "=" of the URL
		name, spec = "", text
	}
	kind, url, _ := strings.Cut(spec, "+")
	p = Provider{Name: cmp.Or(name, kind), Kind: kind, Own: kind == "docker"}
	open := kinds[kind]
	switch {
	case open == nil:
		return p, fmt.Errorf("%q is no kind of provider: give one of %s, as consul or eu=consul+https://consul.eu:8501", kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	case !providerName.MatchString(p.Name):
		return p, fmt.Errorf("%q is no name for a provider: use lower case letters, digits and '-', at most 40", p.Name)
	}
	p.Provider, err = open(provider.Config{URL: url, Env: env, Node: node})
	return p, err
}
