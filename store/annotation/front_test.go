package annotation

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

// fronted is a Service with the ports http (80), https (443) and dns (53, UDP).
func fronted(annotations map[string]string) *object.Service {
	svc := &object.Service{Metadata: object.ObjectMeta{Name: "web", Namespace: "shop", Annotations: annotations}}
	svc.Spec.Type = object.TypeLoadBalancer
	svc.Spec.Ports = []object.ServicePort{
		{Name: "http", Port: 80, Protocol: object.ProtocolTCP}, {Name: "https", Port: 443, Protocol: object.ProtocolTCP}, {Name: "dns", Port: 53, Protocol: "UDP"},
	}
	return svc
}

// String is a Front as the tables below have it.
func (f Front) String() string {
	if f.Key == "" {
		return "-"
	}
	if f.Why != "" {
		return "refused by " + strings.TrimPrefix(f.WhyKey, domain)
	}
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	if len(f.Secrets) > 0 {
		add("tls %s %s", strings.Join(f.Secrets, "+"), tls.VersionName(f.Policy.Min)[4:])
	}
	if f.ALPN != nil {
		add("alpn %s", strings.Join(f.ALPN, "+"))
	}
	if f.ClientCA != "" {
		add("clients of %s optional=%t", f.ClientCA, f.ClientOptional)
	}
	if f.HTTP {
		add("http %s", f.ResponseTimeout)
		if len(f.Hosts) > 0 {
			add("hosts %s", strings.Join(f.Hosts, "+"))
		}
	}
	if f.HTTP2 {
		add("h2c")
	}
	if f.BackendTLS {
		add("to tls ca=%s name=%s unchecked=%t", f.BackendCA, f.BackendName, f.BackendUnchecked)
	}
	for _, s := range f.Services {
		add("%s=%s", s.ServerName, s.Service)
	}
	return strings.Join(words, ", ")
}

func TestFronts(t *testing.T) {
	const arn = "arn:aws:acm:us-east-1:1:certificate/2"
	for name, tt := range map[string]struct {
		annotations map[string]string
		want        [3]string // of http, https, dns
		bad         string    // keys
	}{
		"nothing": {nil, [3]string{"-", "-", "-"}, ""},
		"all ports, UDP among them": {map[string]string{TLSSecret: "a, b"},
			[3]string{"tls a+b 1.2", "tls a+b 1.2", "refused by tls-secret"}, ""},
		"one port":                        {map[string]string{TLSSecret + ".https": "a"}, [3]string{"-", "tls a 1.2", "-"}, ""},
		"one port by number":              {map[string]string{TLSSecret + ".443": "a"}, [3]string{"-", "tls a 1.2", "-"}, ""},
		"all but some":                    {map[string]string{TLSSecret: "a", TLSSecret + ".http": "none", TLSSecret + ".dns": "none"}, [3]string{"-", "tls a 1.2", "-"}, ""},
		"UDP by name":                     {map[string]string{TLSSecret + ".dns": "a"}, [3]string{"-", "-", "refused by tls-secret.dns"}, ""},
		"no such port":                    {map[string]string{TLSSecret + ".htps": "a"}, [3]string{"refused by tls-secret.htps", "refused by tls-secret.htps", "-"}, ""},
		"no such port, TLS":               {map[string]string{TLSSecret + ".htps": "a", TLSSecret + ".https": "b"}, [3]string{"refused by tls-secret.htps", "tls b 1.2", "-"}, ""},
		"no such port of an excluded one": {map[string]string{TLSSecret + ".htps": "a", TLSSecret + ".https": "b", TLSSecret + ".http": "none"}, [3]string{"-", "tls b 1.2", "-"}, "tls-secret.htps"},
		"no such port for http":           {map[string]string{BackendProtocol + ".htp": "http"}, [3]string{"-", "-", "-"}, "backend-protocol.htp"},
		"no such port for https":          {map[string]string{BackendProtocol + ".htps": "https"}, [3]string{"refused by backend-protocol.htps", "refused by backend-protocol.htps", "-"}, ""},
		"UDP port by name of no TCP":      {map[string]string{TLSServices + ".5": "a=b"}, [3]string{"refused by tls-services.5", "refused by tls-services.5", "-"}, ""},
		"no Secret":                       {map[string]string{TLSSecret: ""}, [3]string{"refused by tls-secret", "refused by tls-secret", "-"}, ""},
		"no Secret for one":               {map[string]string{TLSSecret: "a", TLSSecret + ".https": " "}, [3]string{"tls a 1.2", "refused by tls-secret.https", "refused by tls-secret"}, ""},
		"no Secret, excluded":             {map[string]string{TLSSecret: "", TLSSecret + ".http": "none"}, [3]string{"-", "refused by tls-secret", "-"}, ""},
		"clients for nothing":             {map[string]string{TLSClientCA: "ca"}, [3]string{"refused by tls-client-ca", "refused by tls-client-ca", "-"}, ""},
		"policy for names":                {map[string]string{TLSServices + ".http": "a=b", TLSServices + ".https": "a=b", TLSPolicy: "1.3"}, [3]string{"a=b", "a=b", "-"}, "tls-policy"},
		"other namespace":                 {map[string]string{TLSSecret + ".https": "other/a"}, [3]string{"-", "refused by tls-secret.https", "-"}, ""},
		"no name":                         {map[string]string{TLSSecret + ".https": "a,,b"}, [3]string{"-", "refused by tls-secret.https", "-"}, ""},
		"policy":                          {map[string]string{TLSSecret + ".https": "a", TLSPolicy: "1.3"}, [3]string{"-", "tls a 1.3", "-"}, ""},
		"unknown policy":                  {map[string]string{TLSSecret + ".https": "a", TLSPolicy: "1.1"}, [3]string{"-", "refused by tls-policy", "-"}, ""},
		"policy for nothing":              {map[string]string{TLSPolicy: "1.3"}, [3]string{"refused by tls-policy", "refused by tls-policy", "-"}, ""},
		"alpn":                            {map[string]string{TLSSecret + ".https": "a", TLSALPN: "h2, http/1.1"}, [3]string{"-", "tls a 1.2, alpn h2+http/1.1", "-"}, ""},
		"clients":                         {map[string]string{TLSSecret + ".https": "a", TLSClientCA: "ca"}, [3]string{"-", "tls a 1.2, clients of ca optional=false", "-"}, ""},
		"optional clients":                {map[string]string{TLSSecret + ".https": "a", TLSClientCA: "ca", TLSClientAuth: "optional"}, [3]string{"-", "tls a 1.2, clients of ca optional=true", "-"}, ""},
		"clients of no CA":                {map[string]string{TLSSecret + ".https": "a", TLSClientAuth: "optional"}, [3]string{"-", "refused by tls-client-auth", "-"}, ""},
		"unknown auth":                    {map[string]string{TLSSecret + ".https": "a", TLSClientCA: "ca", TLSClientAuth: "maybe"}, [3]string{"-", "refused by tls-client-auth", "-"}, ""},

		"http":                 {map[string]string{BackendProtocol + ".http": "http"}, [3]string{"alpn h2+http/1.1, http 1m0s", "-", "-"}, ""},
		"https to check":       {map[string]string{BackendProtocol + ".https": "https", BackendCA: "ca"}, [3]string{"-", "alpn h2+http/1.1, http 1m0s, to tls ca=ca name=web.shop.svc unchecked=false", "-"}, ""},
		"tls unchecked":        {map[string]string{BackendProtocol + ".https": "tls"}, [3]string{"-", "to tls ca= name=web.shop.svc unchecked=true", "-"}, ""},
		"tls not to check":     {map[string]string{BackendProtocol + ".https": "ssl", BackendCA: "none", BackendName: "db"}, [3]string{"-", "to tls ca= name=db unchecked=false", "-"}, ""},
		"unknown protocol":     {map[string]string{BackendProtocol + ".https": "grpc"}, [3]string{"-", "refused by backend-protocol.https", "-"}, ""},
		"http over UDP":        {map[string]string{BackendProtocol + ".dns": "http"}, [3]string{"-", "-", "refused by backend-protocol.dns"}, ""},
		"alpn beside http":     {map[string]string{TLSSecret + ".https": "a", BackendProtocol + ".https": "http", TLSALPN: "http/1.1"}, [3]string{"-", "tls a 1.2, alpn http/1.1, http 1m0s", "-"}, ""},
		"alpn that is no http": {map[string]string{TLSSecret + ".https": "a", BackendProtocol + ".https": "http", TLSALPN: "mqtt"}, [3]string{"-", "refused by tls-alpn", "-"}, ""},
		"time":                 {map[string]string{BackendProtocol + ".http": "http", ResponseTimeout: "5m"}, [3]string{"alpn h2+http/1.1, http 5m0s", "-", "-"}, ""},
		"bad time":             {map[string]string{BackendProtocol + ".http": "http", ResponseTimeout: "0"}, [3]string{"refused by response-timeout", "-", "-"}, ""},
		"time for nothing":     {map[string]string{ResponseTimeout: "5m", BackendCA: "a"}, [3]string{"-", "-", "-"}, "backend-ca response-timeout"},

		"hosts":               {map[string]string{HTTPHosts + ".http": "WWW.example.com, *.example.org"}, [3]string{"alpn h2+http/1.1, http 1m0s, hosts www.example.com+*.example.org", "-", "-"}, ""},
		"hosts that are none": {map[string]string{HTTPHosts + ".http": "a/b"}, [3]string{"refused by http-hosts.http", "-", "-"}, ""},
		"hosts and names":     {map[string]string{HTTPHosts + ".https": "a.b", TLSServices + ".https": "a=b"}, [3]string{"-", "refused by http-hosts.https", "-"}, ""},
		"hosts and TLS":       {map[string]string{HTTPHosts + ".https": "a.b", BackendProtocol + ".https": "tls"}, [3]string{"-", "refused by http-hosts.https", "-"}, ""},
		"hosts of no port":    {map[string]string{HTTPHosts + ".htp": "a.b"}, [3]string{"-", "-", "-"}, "http-hosts.htp"},

		"names":          {map[string]string{TLSServices + ".https": "WWW.example.com=www, *.example.com=other"}, [3]string{"-", "www.example.com=www, *.example.com=other", "-"}, ""},
		"names and TLS":  {map[string]string{TLSServices + ".https": "a=b", TLSSecret: "a"}, [3]string{"tls a 1.2", "refused by tls-services.https", "refused by tls-secret"}, ""},
		"names and http": {map[string]string{TLSServices + ".https": "a=b", BackendProtocol + ".https": "http"}, [3]string{"-", "refused by backend-protocol.https", "-"}, ""},
		"names without":  {map[string]string{TLSServices + ".https": "www.example.com"}, [3]string{"-", "refused by tls-services.https", "-"}, ""},
		"names of several labels, and of nothing": {map[string]string{TLSServices + ".https": "**.a.com=b,*.a.com=c,*="}, [3]string{"-", "**.a.com=b, *.a.com=c, *=", "-"}, ""},
		"names of three stars":                    {map[string]string{TLSServices + ".https": "***.a.com=b"}, [3]string{"-", "refused by tls-services.https", "-"}, ""},
		"names of itself":                         {map[string]string{TLSServices + ".https": "a=web"}, [3]string{"-", "refused by tls-services.https", "-"}, ""},
		"names twice":                             {map[string]string{TLSServices + ".https": "a=b,A=c"}, [3]string{"-", "refused by tls-services.https", "-"}, ""},
		"names of no shape":                       {map[string]string{TLSServices + ".https": "w*.a=b"}, [3]string{"-", "refused by tls-services.https", "-"}, ""},

		"AWS: ARN":               {map[string]string{awsCert: arn, awsSSLPorts: "443"}, [3]string{"-", "-", "-"}, ""},
		"AWS: Secret":            {map[string]string{awsCert: "secret:a,secret:b", awsSSLPorts: "443"}, [3]string{"-", "tls a+b 1.2", "-"}, ""},
		"AWS: both":              {map[string]string{awsCert: "secret:a," + arn}, [3]string{"-", "-", "-"}, ""},
		"AWS: ours wins":         {map[string]string{awsCert: arn, awsSSLPorts: "https", TLSSecret + ".https": "a"}, [3]string{"-", "tls a 1.2", "-"}, ""},
		"AWS: http":              {map[string]string{awsCert: "secret:a", awsSSLPorts: "443", awsBackend: "http"}, [3]string{"alpn h2+http/1.1, http 1m0s", "tls a 1.2, alpn h2+http/1.1, http 1m0s", "-"}, ""},
		"AWS: https":             {map[string]string{awsCert: "secret:a", awsSSLPorts: "443", awsBackend: "https", BackendCA: "none"}, [3]string{"-", "tls a 1.2, alpn h2+http/1.1, http 1m0s, to tls ca= name=web.shop.svc unchecked=false", "-"}, ""},
		"AWS: ssl":               {map[string]string{awsCert: "secret:a", awsSSLPorts: "443", awsBackend: "ssl", BackendCA: "ca"}, [3]string{"-", "tls a 1.2, to tls ca=ca name=web.shop.svc unchecked=false", "-"}, ""},
		"AWS: policy":            {map[string]string{awsCert: "secret:a", awsSSLPorts: "443", awsPolicy: "ELBSecurityPolicy-TLS13-1-3-2021-06"}, [3]string{"-", "tls a 1.3", "-"}, ""},
		"AWS: obsolete":          {map[string]string{awsCert: "secret:a", awsSSLPorts: "443", awsPolicy: "ELBSecurityPolicy-2016-08"}, [3]string{"-", "refused by service.beta.kubernetes.io/aws-load-balancer-ssl-negotiation-policy", "-"}, ""},
		"AWS: alpn":              {map[string]string{awsCert: "secret:a", awsSSLPorts: "443", awsALPN: "HTTP2Preferred"}, [3]string{"-", "tls a 1.2, alpn h2+http/1.1", "-"}, ""},
		"AWS: policy, no TLS":    {map[string]string{awsPolicy: "ELBSecurityPolicy-TLS13-1-3-2021-06"}, [3]string{"refused by " + awsPolicy, "refused by " + awsPolicy, "-"}, ""},
		"AWS: backend alone":     {map[string]string{awsBackend: "https"}, [3]string{"refused by " + awsBackend, "refused by " + awsBackend, "-"}, ""},
		"AWS: backend, ours":     {map[string]string{awsBackend: "ssl", TLSSecret + ".https": "a"}, [3]string{"-", "tls a 1.2, to tls ca= name=web.shop.svc unchecked=true", "-"}, ""},
		"AWS: backend, ports":    {map[string]string{awsBackend: "ssl", awsSSLPorts: "443"}, [3]string{"-", "-", "-"}, ""}, // see TestTLSKey
		"AWS: backend tcp":       {map[string]string{awsBackend: "tcp"}, [3]string{"-", "-", "-"}, ""},
		"AWS: backend none":      {map[string]string{awsBackend: "udp"}, [3]string{"-", "-", "-"}, awsBackend},
		"AWS: ports beside ours": {map[string]string{awsSSLPorts: "443", TLSSecret: "a", TLSSecret + ".dns": "none"}, [3]string{"tls a 1.2", "tls a 1.2", "-"}, awsSSLPorts},
	} {
		fronts, bad := Fronts(fronted(tt.annotations))
		for i, f := range fronts {
			if f.String() != tt.want[i] {
				t.Errorf("%s: port %d: %s, want %s (%s)", name, i, f, tt.want[i], f.Why)
			}
		}
		var keys []string
		for _, b := range bad {
			keys = append(keys, strings.TrimPrefix(b.Key, domain))
		}
		if got := strings.Join(keys, " "); got != tt.bad {
			t.Errorf("%s: bad: %q, want %q", name, got, tt.bad)
		}
	}
}

// No policy has a version below 1.2 or a suite that crypto/tls calls insecure, and the one of the pages is known.
func TestPolicies(t *testing.T) {
	secure := map[uint16]bool{}
	for _, s := range tls.CipherSuites() {
		secure[s.ID] = true
	}
	for _, p := range policies {
		if p.Min < tls.VersionTLS12 || p.Max < p.Min || p.Min == tls.VersionTLS12 && len(p.Suites) == 0 {
			t.Errorf("%+v", p)
		}
		for _, s := range p.Suites {
			if name := tls.CipherSuiteName(s); !secure[s] || strings.Contains(name, "CBC") || !strings.Contains(name, "ECDHE") {
				t.Errorf("%s has %s", p.Name, name)
			}
		}
		if slices.Contains(obsolete, p.Name) {
			t.Errorf("%s is obsolete and known", p.Name)
		}
	}
	if p, why := policyOf("ELBSecurityPolicy-TLS-1-2-2017-01"); why != "" || p.Max != tls.VersionTLS12 {
		t.Errorf("%+v, %s", p, why)
	}
	for _, name := range obsolete {
		if _, why := policyOf(name); !strings.Contains(why, "below 1.2 or weak") {
			t.Errorf("%s: %q", name, why)
		}
	}
}

// The appProtocol of a port is the default of what its endpoints speak, where the relay ends TLS or passes on requests.
func TestAppProtocolIsTheDefault(t *testing.T) {
	for _, c := range []struct {
		app         string
		annotations map[string]string
		want        string
	}{
		{"kubernetes.io/h2c", map[string]string{TLSSecret: "a"}, "tls a 1.2, alpn h2+http/1.1, http 1m0s, h2c"},
		{"kubernetes.io/h2c", map[string]string{BackendProtocol: "http"}, "alpn h2+http/1.1, http 1m0s, h2c"},
		{"kubernetes.io/h2c", map[string]string{TLSSecret: "a", BackendProtocol: "tcp"}, "tls a 1.2"},
		{"", map[string]string{BackendProtocol: "h2c"}, "alpn h2+http/1.1, http 1m0s, h2c"},
		{"https", map[string]string{TLSSecret: "a", BackendCA: "none"}, "tls a 1.2, alpn h2+http/1.1, http 1m0s, to tls ca= name=web.shop.svc unchecked=false"},
		{"https", map[string]string{TLSSecret: "a", BackendProtocol: "http"}, "tls a 1.2, alpn h2+http/1.1, http 1m0s"},
		{"http", map[string]string{TLSSecret: "a"}, "tls a 1.2"},
		{"kubernetes.io/h2c", nil, "-"}, // the kernel serves it, whatever is spoken
	} {
		svc := fronted(c.annotations)
		svc.Spec.Ports = svc.Spec.Ports[1:2]
		svc.Spec.Ports[0].AppProtocol = &c.app
		fronts, bad := Fronts(svc)
		if got := fronts[0].String(); got != c.want || len(bad) > 0 {
			t.Errorf("%s with %v: %s (%v), want %s", c.app, c.annotations, got, bad, c.want)
		}
	}
}
