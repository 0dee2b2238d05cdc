package parts

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/relay/tlsterm"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/appliance/task"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// fronts builds the TLS and HTTP configuration of relayed ports from annotations and Secrets.
type fronts struct {
	keeper *tlsterm.Keeper
	made   map[string]map[string]*madeFront // by Service and port
	rearm  chan struct{}                    // capacity 1; a value means that certificates may have changed

	mu      sync.Mutex
	secrets map[string][]string // the Secrets with certificates, by Service
}

// madeFront is a relay.Front with its inputs. It is reused as long as the inputs are equal, so that the TLS session tickets of clients stay valid.
type madeFront struct {
	asked  annotation.Front
	server tlsterm.Server
	ca     *tlsterm.Authority
	front  *relay.Front
}

func newFronts(secret func(key string) *object.Secret) *fronts {
	return &fronts{
		made: map[string]map[string]*madeFront{}, rearm: make(chan struct{}, 1), secrets: map[string][]string{},
		keeper: tlsterm.NewKeeper(func(key string) (map[string][]byte, string, bool) {
			s := secret(key)
			if s == nil {
				return nil, "", false
			}
			return s.Data, s.Metadata.UID + "/" + s.Metadata.ResourceVersion, true
		}),
	}
}

// state returns the state of a resolve.Need for a key pair or a CA in a Secret.
func (f *fronts) state(n resolve.Need) resolve.State {
	if n.Kind == resolve.NeedAuthority {
		ca, wrong := f.keeper.Authority(n.Name)
		return resolve.State{Missing: ca == nil, Serves: ca != nil, Wrong: wrong}
	}
	pair, wrong, soon := f.keeper.Pair(n.Name)
	return resolve.State{Missing: pair == nil, Serves: pair != nil && pair.IsValid(time.Now()), Wrong: wrong, Soon: soon}
}

// Foreseen implements reconcile.Answerer for predictions. It answers like a Relay with the same Secrets, but opens no listeners.
type Foreseen struct{ fronts *fronts }

// NewForeseen returns a Foreseen that reads Secrets, by "namespace/name", with the function secret.
func NewForeseen(secret func(key string) *object.Secret) Foreseen { return Foreseen{newFronts(secret)} }

// Meet implements reconcile.Answerer.
func (f Foreseen) Meet(_ string, d *resolve.Demand, o *resolve.Observed) {
	for _, n := range d.Needs {
		switch n.Kind {
		case resolve.NeedReturnRoutes:
			o.Answer(n, returnRoutes(n.Family))
		case resolve.NeedKeyPair, resolve.NeedAuthority:
			o.Answer(n, f.fronts.state(n))
		}
	}
}

// plan builds the fronts of Services that changed.
func (f *fronts) plan(services []reconcile.Service) {
	touched := false
	for i := range services {
		svc := &services[i]
		before := f.made[svc.Key]
		now := map[string]*madeFront{}
		var certificates []string
		if svc.Relay != nil {
			for id, asked := range svc.Relay.Fronts {
				now[id] = f.make(before[id], asked)
				certificates = append(certificates, asked.Secrets...)
			}
		}
		if len(before)+len(now) == 0 {
			continue
		}
		touched = true
		if f.made[svc.Key] = now; len(now) == 0 {
			delete(f.made, svc.Key)
		}
		f.mu.Lock()
		if f.secrets[svc.Key] = certificates; len(certificates) == 0 {
			delete(f.secrets, svc.Key)
		}
		f.mu.Unlock()
	}
	if touched {
		task.Wake(f.rearm)
	}
}

// make returns the front for the annotations of a port. If the inputs did not change, it returns the previous front, which is passed as before.
func (f *fronts) make(before *madeFront, asked *annotation.Front) *madeFront {
	m := &madeFront{asked: *asked}
	if len(asked.Secrets) > 0 {
		m.server = tlsterm.Server{Min: asked.Policy.Min, Max: asked.Policy.Max, Suites: asked.Policy.Suites, ALPN: offered(asked), Optional: asked.ClientOptional}
		for _, secret := range asked.Secrets {
			if pair, _ := f.keeper.InUse(secret); pair != nil {
				m.server.Pairs = append(m.server.Pairs, pair)
			}
		}
		if asked.ClientCA != "" {
			_, m.server.Clients = f.keeper.InUse(asked.ClientCA)
		}
	}
	if asked.BackendCA != "" {
		_, m.ca = f.keeper.InUse(asked.BackendCA)
	}
	if before != nil && before.server.Equal(&m.server) && before.ca == m.ca && reflect.DeepEqual(before.asked, m.asked) {
		return before
	}
	m.front = m.build()
	return m
}

// offered returns the protocols that the relay offers to clients by ALPN. If HTTP/1.1 is one of them it adds http/1.0, which the relay also serves.
// Otherwise the handshake of a client that offers only http/1.0 would fail (RFC 7301, section 3.2).
func offered(asked *annotation.Front) []string {
	if asked.HTTP && slices.Contains(asked.ALPN, "http/1.1") {
		return append(slices.Clone(asked.ALPN), "http/1.0")
	}
	return asked.ALPN
}

// build returns the configuration for the relay. If a required certificate or CA is missing, every handshake fails, so that no client is served in
// clear text. The kernel already rejects the clients in this case.
func (m *madeFront) build() *relay.Front {
	asked := &m.asked
	front := &relay.Front{HTTP: asked.HTTP, HTTP2: asked.HTTP2, Hosts: asked.Hosts, ResponseTimeout: asked.ResponseTimeout}
	if len(asked.Secrets) > 0 {
		front.TLS = m.server.Config()
		if asked.ClientCA != "" && m.server.Clients == nil {
			front.TLS = &tls.Config{}
		}
	}
	if asked.BackendTLS {
		if front.BackendTLS = tlsterm.ClientConfig(m.ca, asked.BackendName); asked.BackendCA != "" && m.ca == nil {
			front.BackendTLS = &tls.Config{}
		}
	}
	return front
}

// of returns the Front of a port for the relay, nil if it has none.
func (f *fronts) of(service, port string) *relay.Front {
	m := f.made[service][port]
	if m == nil || len(m.asked.Services) > 0 {
		return nil
	}
	return m.front
}

// watchInterval is the longest time between two readings of the clock, since the clock may be set in between.
const watchInterval = time.Hour

// watchTime makes the reconcile loop plan Services again when the validity of one of their certificates begins, ends, or is about to end.
func (r *Relay) watchTime(ctx context.Context) error {
	from := time.Now()
	task.Repeat(ctx, r.fronts.rearm, func() time.Time {
		for {
			at, secrets, has := r.fronts.keeper.Due(from)
			switch now := time.Now(); {
			case !has:
				return time.Time{}
			case now.Before(at):
				return now.Add(min(at.Sub(now), watchInterval))
			}
			from = at
			for _, secret := range secrets {
				r.Changed(resolve.Need{Kind: resolve.NeedKeyPair, Name: secret})
			}
		}
	})
	return nil
}

// Certificates lists the certificates in use, by Secret.
func (r *Relay) Certificates() (list []wire.ServiceCertificate) {
	for _, p := range r.fronts.keeper.Pairs() {
		list = append(list, wire.ServiceCertificate{Secret: p.Secret, Names: p.Names(), Expires: p.Leaf().NotAfter.UTC()})
	}
	return list
}

// CertificatesOf lists the certificates of a Service, "namespace/name".
func (r *Relay) CertificatesOf(service string) []wire.ServiceCertificate {
	r.fronts.mu.Lock()
	secrets := r.fronts.secrets[service]
	r.fronts.mu.Unlock()
	if len(secrets) == 0 {
		return nil
	}
	return slices.DeleteFunc(r.Certificates(), func(c wire.ServiceCertificate) bool { return !slices.Contains(secrets, c.Secret) })
}

// names has the Services to which the relay passes clients of other Services, selected by TLS server name.
type names struct {
	// naming has the Services with server names that lead to other Services. by is the reverse: it maps each named Service to the keys of naming that
	// name it.
	naming map[string]reconcile.Service
	by     map[string]map[string]bool
	// targets has the named Services as last planned. A Service that does not exist has no ports.
	targets map[string]reconcile.Service
	unknown map[string]bool // named Services that were not planned yet
}

// plan records Services that were planned. again has the other Services with server names that lead to the planned ones; their ports must be set up
// again. unknown has the keys of named Services that were never planned.
func (n *names) plan(services []reconcile.Service) (again []reconcile.Service, unknown []string) {
	planned := map[string]bool{}
	var left []string
	for i := range services {
		svc := &services[i]
		planned[svc.Key] = true
		left = append(left, n.setNaming(svc)...)
	}
	for _, target := range left { // now, as another one of them may name it
		if len(n.by[target]) == 0 {
			delete(n.by, target)
			delete(n.targets, target)
			delete(n.unknown, target)
		}
	}
	others := map[string]bool{}
	for i := range services {
		svc := &services[i]
		if n.by[svc.Key] == nil {
			continue
		}
		n.targets[svc.Key] = *svc
		delete(n.unknown, svc.Key)
		for key := range n.by[svc.Key] {
			if !planned[key] {
				others[key] = true
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(others)) {
		again = append(again, n.naming[key])
	}
	return again, slices.Sorted(maps.Keys(n.unknown))
}

// setNaming records the Services to which the server names of svc lead now, and returns the Services to which they led before. It leaves the latter
// in n.targets; the caller removes those that no Service names any more.
func (n *names) setNaming(svc *reconcile.Service) (before []string) {
	last, was := n.naming[svc.Key]
	targets := targetsOf(svc)
	if !was && len(targets) == 0 {
		return nil
	}
	before = targetsOf(&last)
	for _, target := range before {
		delete(n.by[target], svc.Key)
	}
	for _, target := range targets {
		if n.by[target] == nil {
			n.by[target] = map[string]bool{}
		}
		n.by[target][svc.Key] = true
		if _, known := n.targets[target]; !known {
			n.unknown[target] = true
		}
	}
	if n.naming[svc.Key] = *svc; len(targets) == 0 {
		delete(n.naming, svc.Key)
	}
	return before
}

// targetsOf returns the keys of the Services to which the server names of svc lead.
func targetsOf(svc *reconcile.Service) (targets []string) {
	if svc.Relay == nil {
		return nil
	}
	for _, front := range svc.Relay.Fronts {
		for _, s := range front.Services {
			if s.Service != "" {
				targets = append(targets, s.Service)
			}
		}
	}
	return targets
}

// portOf returns the port of a named Service that gets the clients of port p: its TCP port with the same number, or else its only TCP port. It
// returns nil if there is neither.
func portOf(target *reconcile.Service, p *nft.ServicePort) *nft.ServicePort {
	var ports []*nft.ServicePort
	for i := range target.Ports {
		t := &target.Ports[i]
		if t.Family != p.Family || t.Protocol != nft.TCP {
			continue
		}
		if number(t) == number(p) {
			return t
		}
		ports = append(ports, t)
	}
	if len(ports) != 1 {
		return nil
	}
	return ports[0]
}

// number returns the port number of a Service port at its addresses, 0 if it has no address.
func number(p *nft.ServicePort) uint16 {
	i := slices.IndexFunc(p.Frontends, func(fe nft.Frontend) bool { return fe.Addr.IsValid() })
	if i < 0 {
		return 0
	}
	return p.Frontends[i].Port
}

// named returns the relay's destinations for clients of a port, by TLS server name.
func (r *Relay) named(svc *reconcile.Service, p *nft.ServicePort, pool nft.Pool) (list []relay.Named) {
	if svc.Relay == nil || svc.Relay.Fronts[p.ID] == nil {
		return nil
	}
	for _, n := range svc.Relay.Fronts[p.ID].Services {
		port := relay.Port{ID: n.Service, Protocol: relay.TCP} // without endpoints: clients are reset
		if target, known := r.names.targets[n.Service]; known {
			if to := portOf(&target, p); to != nil {
				port = r.relayedPort(&target, to, pool)
				if how := svc.Relay; target.Relay == nil {
					port.Pick.Affinity = to.Affinity
					port.Connect.Timeout, port.Connect.Retries, port.IdleTimeout = how.ConnectTimeout, how.ConnectRetries, how.IdleTimeout
				}
			}
		}
		list = append(list, relay.Named{ServerName: n.ServerName, Port: port})
	}
	return list
}

// problems returns a problem for each server name that leads to a Service without a suitable port.
func (n *names) problems() (list []resolve.Problem) {
	for _, key := range slices.Sorted(maps.Keys(n.naming)) {
		svc := n.naming[key]
		ref := object.ServiceRef(key)
		told := map[string]bool{}
		for i := range svc.Ports {
			p := &svc.Ports[i]
			front := svc.Relay.Fronts[p.ID]
			if front == nil {
				continue
			}
			for _, s := range front.Services {
				if target := n.targets[s.Service]; s.Service == "" || portOf(&target, p) != nil || told[s.ServerName] {
					continue
				}
				told[s.ServerName] = true
				list = append(list, resolve.Problem{Object: ref, Field: annotation.Field(front.Key), Reason: reasonNamesNothing, Message: fmt.Sprintf(
					"clients that ask for %s are reset: Service %s has no TCP port %d over %s, nor a single other one; give it one, or leave the name out", s.ServerName, s.Service, number(p), p.Family.Name())})
			}
		}
	}
	return list
}

// reasonNamesNothing is the reason when a server name leads to a Service without a port for its clients.
const reasonNamesNothing = "NamesNothing"
