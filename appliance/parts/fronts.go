package parts

import (
	"context"
	"crypto/tls"
	"reflect"
	"slices"
	"sync"
	"time"

	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/appliance/reconcile"
	"svcctl.io/svcctl/appliance/relay"
	"svcctl.io/svcctl/appliance/relay/tlsterm"
	"svcctl.io/svcctl/appliance/resolve"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/object"
)

// fronts makes what the relay does with TLS and HTTP from annotations and Secrets.
type fronts struct {
	keeper *tlsterm.Keeper
	made   map[string]map[string]*madeFront // by Service and port
	users  map[string]map[string]bool       // Services by Secret
	rearm  chan struct{}                    // has a value when certificates may have changed

	mu      sync.Mutex
	secrets map[string][]string // with certificates, by Service
	asked   map[string]bool     // Secrets that were asked for since the last plan
}

// madeFront is a Front, and what it was made from: as long as that is the same, clients keep their
// session tickets.
type madeFront struct {
	asked  annotation.Front
	server tlsterm.Server
	ca     *tlsterm.Authority
	front  *relay.Front
}

func newFronts(secret func(key string) *object.Secret) *fronts {
	return &fronts{
		made: map[string]map[string]*madeFront{}, users: map[string]map[string]bool{}, rearm: make(chan struct{}, 1),
		secrets: map[string][]string{}, asked: map[string]bool{},
		keeper: tlsterm.NewKeeper(func(key string) (map[string][]byte, string, bool) {
			s := secret(key)
			if s == nil {
				return nil, "", false
			}
			return s.Data, s.Metadata.UID + "/" + s.Metadata.ResourceVersion, true
		}),
	}
}

// state returns the state of a Secret.
func (f *fronts) state(n resolve.Need) resolve.State {
	f.mu.Lock()
	f.asked[n.Name] = true
	f.mu.Unlock()
	if n.Kind == resolve.NeedAuthority {
		ca, wrong := f.keeper.Authority(n.Name)
		return resolve.State{Missing: ca == nil, Wrong: wrong}
	}
	pair, wrong, soon := f.keeper.Pair(n.Name)
	return resolve.State{Missing: pair == nil, Wrong: wrong, Soon: soon}
}

// Foreseen answers as a Relay that has these Secrets, and opens nothing.
type Foreseen struct{ fronts *fronts }

// NewForeseen takes the source of Secrets, by "namespace/name".
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

// plan makes the fronts of Services anew, and forgets the Secrets that no Service needs any more.
func (f *fronts) plan(services []reconcile.Service) {
	f.mu.Lock()
	concerned := f.asked // Secrets that somebody may have begun or ceased to need
	f.asked = map[string]bool{}
	f.mu.Unlock()
	touched := false
	for i := range services {
		svc := &services[i]
		before := f.made[svc.Key]
		now := map[string]*madeFront{}
		if svc.Relay != nil {
			for id, asked := range svc.Relay.Fronts {
				now[id] = f.make(before[id], asked)
			}
		}
		if len(before)+len(now) == 0 {
			continue
		}
		touched = true
		if f.made[svc.Key] = now; len(now) == 0 {
			delete(f.made, svc.Key)
		}
		f.use(svc.Key, before, now, concerned)
	}
	for secret := range concerned { // at the end: a Secret that one Service needs no more may be another one's by now
		if len(f.users[secret]) > 0 {
			continue
		}
		delete(f.users, secret)
		f.keeper.Forget(secret)
	}
	if !touched {
		return
	}
	select {
	case f.rearm <- struct{}{}:
	default:
	}
}

// use notes the Secrets of a Service, and adds them, with those that it had before, to the concerned.
func (f *fronts) use(service string, before, now map[string]*madeFront, concerned map[string]bool) {
	for _, m := range before {
		for _, secret := range m.secrets() {
			concerned[secret] = true
			delete(f.users[secret], service)
		}
	}
	var certificates []string
	for _, m := range now {
		certificates = append(certificates, m.asked.Secrets...)
		for _, secret := range m.secrets() {
			concerned[secret] = true
			if f.users[secret] == nil {
				f.users[secret] = map[string]bool{}
			}
			f.users[secret][service] = true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.secrets[service] = certificates; len(certificates) == 0 {
		delete(f.secrets, service)
	}
}

// secrets returns the names of all Secrets that it needs.
func (m *madeFront) secrets() (list []string) {
	for _, secret := range append([]string{m.asked.ClientCA, m.asked.BackendCA}, m.asked.Secrets...) {
		if secret != "" {
			list = append(list, secret)
		}
	}
	return list
}

// make is the Front that is asked for; the one before if nothing of it is different.
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

// offered are the protocols that clients are offered by ALPN. Who serves HTTP/1.1 serves HTTP/1.0 too, and the
// handshake of a client that asks for that alone would fail (RFC 7301, section 3.2).
func offered(asked *annotation.Front) []string {
	if asked.HTTP && slices.Contains(asked.ALPN, "http/1.1") {
		return append(slices.Clone(asked.ALPN), "http/1.0")
	}
	return asked.ALPN
}

// build makes the configuration. Without a certificate or CA that is asked for, every handshake fails: no client
// is served in the clear instead. Before that the kernel refuses the clients.
func (m *madeFront) build() *relay.Front {
	asked := &m.asked
	front := &relay.Front{HTTP: asked.HTTP, HTTP2: asked.HTTP2, ResponseTimeout: asked.ResponseTimeout}
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

// of is the Front of a port for the relay; nil: it has none.
func (f *fronts) of(service, port string) *relay.Front {
	m := f.made[service][port]
	if m == nil || len(m.asked.Services) > 0 {
		return nil
	}
	return m.front
}

// watchInterval is between looks at the clock, which may be set.
const watchInterval = time.Hour

// watchTime names the Services to plan again when certificates begin, end, or end soon.
func (r *Relay) watchTime(ctx context.Context, changed func()) error {
	from := time.Now()
	timer := time.NewTimer(watchInterval)
	defer timer.Stop()
	for {
		at, secrets, has := r.fronts.keeper.Due(from)
		timer.Stop()
		if has {
			timer.Reset(min(max(time.Until(at), 0), watchInterval))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.fronts.rearm:
			continue
		case <-r.ask:
			changed()
			continue
		case <-timer.C:
		}
		if time.Now().Before(at) {
			continue
		}
		from = at
		r.mu.Lock()
		r.due = append(r.due, secrets...)
		r.mu.Unlock()
		changed()
	}
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
