package annotation

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/store/object"
)

var update = flag.Bool("update", false, "rewrite docs/reference/annotations.md")

// The page of the manual is printed from the table.
func TestManual(t *testing.T) {
	const page = "../../docs/reference/annotations.md"
	if *update {
		if err := os.WriteFile(page, []byte(manual()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != manual() {
		t.Error("docs/reference/annotations.md is not what the table says: run go test ./store/annotation -run TestManual -update")
	}
}

// qualified finds names with a domain, as annotations are. One behind // is a URL.
var qualified = regexp.MustCompile(`(?:^|[^\w./-])((?:[a-z0-9-]+\.)+[a-z]+/[A-Za-z0-9][\w.-]*\w)`)

// seedKeys are the names with a domain in the pages that svcctl was written from, and what those
// are that are no annotation or label: "" for the others.
func seedKeys(t *testing.T) map[string]string {
	t.Helper()
	content, err := os.ReadFile("testdata/seeds.txt")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	for line := range strings.Lines(string(content)) {
		key, what, _ := strings.Cut(strings.TrimSpace(line), " is ")
		if key != "" && !strings.HasPrefix(key, "#") {
			keys[key] = what
		}
	}
	return keys
}

// Every annotation and label in the pages that svcctl was written from has a row of its own.
func TestTableCoversThePages(t *testing.T) {
	keys := seedKeys(t)
	if len(keys) < 30 {
		t.Fatalf("only %d keys in testdata/seeds.txt", len(keys))
	}
	pages, err := filepath.Glob("../../../shared/seeds/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range qualified.FindAllStringSubmatch(string(content), -1) {
			if _, listed := keys[match[1]]; !listed {
				t.Errorf("%s has %s, which is not in testdata/seeds.txt", filepath.Base(page), match[1])
			}
		}
	}
	for key, what := range keys {
		r := Find(key)
		switch {
		case what != "" && r != nil && !r.isPattern():
			t.Errorf("%s has a row, and testdata/seeds.txt says that it is %s", key, what)
		case what == "" && r == nil:
			t.Errorf("%s has no row", key)
		case what == "" && r.isPattern() && r.Effect == Named:
			t.Errorf("%s has no row but that of all others, %s", key, r.Key)
		}
	}
}

// A Service with all annotations of the pages: each acts, or is named to its author.
func TestServiceWithAllAnnotations(t *testing.T) {
	values := map[string]string{
		"aws-load-balancer-internal": "0.0.0.0/0", "backend-protocol": "(https|http|ssl|tcp)", "ssl-ports": "443,8443", "type": "nlb",
		"healthcheck-healthy-threshold": "", "load-balancer-type": "Internal",
	}
	svc := &object.Service{
		TypeMeta: object.TypeMeta{APIVersion: object.APIVersionCore, Kind: object.KindService},
		Spec:     object.ServiceSpec{Type: object.TypeLoadBalancer, Ports: []object.ServicePort{{Port: 443, Protocol: object.ProtocolTCP}}},
	}
	svc.Metadata.Annotations = map[string]string{}
	for key, what := range seedKeys(t) {
		if r := Find(key); what != "" || r.Label || !slices.Contains(r.kinds(), object.KindService) {
			continue
		}
		svc.Metadata.Annotations[key] = "true"
		for name, value := range values {
			if strings.HasSuffix(key, "-"+name) || strings.HasSuffix(key, "/"+name) {
				svc.Metadata.Annotations[key] = value
			}
		}
	}
	if n := len(svc.Metadata.Annotations); n < 24 {
		t.Fatalf("only %d annotations: %v", n, svc.Metadata.Annotations)
	}
	// Package resolve names these, with the place of the log.
	told := map[string]bool{Field(awsLogBucket): true, Field(awsLogBucketUnder): true}
	for _, f := range Foreigners(svc) {
		told[f.Field] = true
	}
	for key := range svc.Metadata.Annotations {
		if acts := Find(key).Effect == Acts; acts == told[Field(key)] {
			t.Errorf("%s: acts %v, named %v: want one of both", key, acts, told[Field(key)])
		}
	}
}

// Each row says enough, in the words of its effect, and is found by its key.
func TestRows(t *testing.T) {
	for i := range Table() {
		r := &Table()[i]
		if r.Of == "" || r.Text == "" || strings.HasSuffix(r.Text, ".") || strings.Contains(r.Text, "%s") {
			t.Errorf("%s: of %q, text %q", r.Key, r.Of, r.Text)
		}
		if first := slices.IndexFunc(Table(), func(other Row) bool { return other.Key == r.Key }); first != i {
			t.Errorf("%s has two rows", r.Key)
		}
		if r.instead != "" && Find(r.instead).Effect != Acts {
			t.Errorf("%s: %q has no effect in its place", r.Key, r.instead)
		}
		if _, no := r.internalValues(); r.internal && no == "" && r.Values != "the name of a subnet" {
			t.Errorf("%s is internal for the values %q", r.Key, r.Values)
		}
		if !slices.Contains([]Effect{Acts, Kept, Named, Refused}, r.Effect) {
			t.Errorf("%s: effect %q", r.Key, r.Effect)
		}
		if found := Find(strings.ReplaceAll(r.Key, "*", "some-thing-else")); found != r {
			t.Errorf("%s: found by its key is %v", r.Key, found)
		}
	}
	effect := func(want Effect, keys ...string) {
		t.Helper()
		for _, key := range keys {
			if r := table().byKey[key]; r == nil || r.Effect != want {
				t.Errorf("%s is read, and its row is %+v, want one that is %s", key, r, want)
			}
		}
	}
	if len(table().internals) < 18 || len(table().clientLists) < 11 {
		t.Errorf("%d rows of internal load balancers, %d of lists of clients", len(table().internals), len(table().clientLists))
	}
	effect(Acts, askedAddresses...)
	effect(Acts, sharingKeys...)
	effect(Acts, azure+"allowed-ip-ranges")
	effect(Refused, certificates...)
}

// An annotation of svcctl that acts is read by some code of the product: its key stands there.
func TestOwnRowsAreRead(t *testing.T) {
	var sources strings.Builder
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && len(entry.Name()) > 2 || path == "../../appliance/test" || path == "../../store/annotation"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		content, err := os.ReadFile(path)
		sources.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	readHere := slices.Concat(askedAddresses, sharingKeys, []string{ConnectionLog, ProxyMode, ProxyProtocol, ProxyFrom, Transparent, ConnectTimeout, ConnectRetries, Announce, MED, Prepend, TTLSecurity, InternalPool, EndpointsFrom, EndpointsFrom + ".*", EndpointsState, EndpointsReleased,
		TLSSecret, TLSSecret + ".*", TLSPolicy, TLSALPN, TLSClientCA, TLSClientAuth, TLSServices, TLSServices + ".*", BackendProtocol, BackendProtocol + ".*", HTTPHosts, HTTPHosts + ".*", BackendCA, BackendName, ResponseTimeout})
	for i := range Table() {
		r := &Table()[i]
		key := `"` + strings.TrimRight(r.Key, "*.-")
		if !r.isPattern() {
			key += `"`
		}
		if r.Of == ofSvcctl && r.Effect == Acts && !slices.Contains(readHere, r.Key) && !strings.Contains(sources.String(), key) {
			t.Errorf("%s is said to act, and nobody reads it", r.Key)
		}
	}
}

func annotated(values ...string) *object.Service {
	svc := &object.Service{TypeMeta: object.TypeMeta{Kind: object.KindService}, Spec: object.ServiceSpec{Type: object.TypeLoadBalancer}}
	svc.Metadata.Annotations = map[string]string{"example.com/team": "blue"}
	for i := 0; i < len(values); i += 2 {
		svc.Metadata.Annotations[values[i]] = values[i+1]
	}
	return svc
}

// What asks for something that does not happen here is told, and what asks for nothing is not.
func TestForeigners(t *testing.T) {
	labeled := func(o object.Object, key string) object.Object {
		o.GetMeta().Labels = map[string]string{key: "x"}
		return o
	}
	slice := func() *object.EndpointSlice {
		return &object.EndpointSlice{TypeMeta: object.TypeMeta{Kind: object.KindEndpointSlice}}
	}
	on := func(o object.Object, key, value string) object.Object {
		o.GetMeta().Annotations = map[string]string{key: value}
		return o
	}
	plain := func(key, value string) object.Object {
		svc := annotated(key, value)
		svc.Spec.Type = object.TypeNodePort
		return svc
	}
	clusterIP := annotated(awsCert, "arn:aws:acm:x")
	clusterIP.Spec.Type = object.TypeClusterIP
	for name, tt := range map[string]struct {
		o    object.Object
		want string // "" for none
	}{
		"nothing":      {annotated(), ""},
		"topology":     {annotated("service.kubernetes.io/topology-mode", "Auto"), "metadata.annotations[service.kubernetes.io/topology-mode]: has no effect here"},
		"no topology":  {annotated("service.kubernetes.io/topology-mode", "Disabled"), ""},
		"hints":        {annotated("service.kubernetes.io/topology-aware-hints", "auto"), "has no effect here"},
		"unready":      {annotated("service.alpha.kubernetes.io/tolerate-unready-endpoints", "true"), "spec.publishNotReadyAddresses"},
		"other proxy":  {labeled(annotated(), "service.kubernetes.io/service-proxy-name"), "metadata.labels[service.kubernetes.io/service-proxy-name]: leaves"},
		"managed":      {labeled(slice(), "endpointslice.kubernetes.io/managed-by"), "names a controller that does not run here"},
		"of a Service": {labeled(annotated(), "endpointslice.kubernetes.io/managed-by"), ""},

		"certificate":                    {annotated(awsCert, "arn:aws:acm:x"), "not served, rather than passed through in the clear, until svcctl.io/tls-secret"},
		"a Secret":                       {annotated(awsCert, "secret:a, secret:b"), ""},
		"a Secret and an ARN":            {annotated(awsCert, "secret:a,arn:aws:acm:x"), "not served"},
		"no certificate":                 {annotated(awsCert, " "), "not served, rather than passed through in the clear"},
		"not a balancer":                 {clusterIP, "not served, rather than passed through in the clear"},
		"on no balancer":                 {plain(aws+"connection-idle-timeout", "60"), "has no effect: the Service is not of type LoadBalancer; write svcctl.io/idle-timeout"},
		"groups, no balancer":            {plain(aws+"extra-security-groups", "office"), "not of type LoadBalancer; write svcctl.io/source-sets"},
		"log, no balancer":               {plain(awsLog, "true"), "not of type LoadBalancer; write svcctl.io/connection-log"},
		"internal, no balancer":          {plain(aws+"internal", "true"), "not of type LoadBalancer"},
		"not internal, no balancer":      {plain("cloud.google.com/load-balancer-type", "External"), ""},
		"off, no balancer":               {plain(awsLog, "false"), ""},
		"addresses, no balancer":         {plain(LoadBalancerIPs, "192.0.2.1"), "not of type LoadBalancer"},
		"a list of clients, no balancer": {plain(alibaba+"acl-id", "x"), "not of type LoadBalancer; write svcctl.io/source-sets"},
		"of slices":                      {annotated(domain+"weight", "5"), "is an annotation of EndpointSlice, Endpoints, Pod, not of Service; write svcctl.io/weights"},
		"of slices, Cilium's":            {annotated("service.cilium.io/weight", "5"), "not of Service; write svcctl.io/weights"},
		"of slices, without":             {annotated(domain+"priority", "5"), "is an annotation of EndpointSlice, Endpoints, Pod, not of Service"},
		"of pools":                       {annotated(InternalPool, "true"), "is an annotation of IPAddressPool, not of Service"},
		"of Services":                    {on(slice(), domain+"balance", "rr"), "is an annotation of Service, not of EndpointSlice"},
		"unknown of a slice":             {on(slice(), domain+"wieght", "5"), "is an unknown annotation"},
		"tcp":                            {annotated(oracle+"backend-protocol", "tcp"), ""},
		"http":                           {annotated(oracle+"backend-protocol", "http"), "write svcctl.io/backend-protocol"},
		"PROXY":                          {annotated(aws+"proxy-protocol", "*"), ""},
		"PROXY elsewhere":                {annotated(openStack+"proxy-protocol", "true"), "write svcctl.io/proxy-protocol: v1 or v2"},
		"acts":                           {annotated(aws+"connection-draining-enabled", "true"), ""},
		"kept":                           {annotated("kubectl.kubernetes.io/last-applied-configuration", "{}"), ""},
		"a cloud's":                      {annotated(aws+"moon-phase", "full"), "load balancer of AWS"},
		"misspelled":                     {annotated("svcctl.io/drain-timeot", "1s"), "is an unknown annotation"},
		"a port's check":                 {annotated("svcctl.io/health-check.dns", "none"), ""},
		"annotation, label":              {labeled(annotated(), aws+"proxy-protocol"), ""},
		"only cross-zone":                {annotated(awsAttributes, attributeCrossZone+"=false"), ""},
		"another attribute":              {annotated(awsAttributes, attributeCrossZone+"=false,deletion_protection.enabled=true"), "alone"},
		"ports without TLS":              {annotated(alibaba+"protocol-port", "tcp:80,udp:53"), ""},
		"ports with TLS":                 {annotated(alibaba+"protocol-port", "tcp:80,https:443"), "asks for TLS with a certificate"},
		"JSON without TLS":               {annotated(tencentCloud+"specify-protocol", `{"80":{"protocol":["TCP"]}}`), ""},
		"JSON that is none":              {annotated(tencentCloud+"specify-protocol", `443: HTTPS`), "asks for TLS with a certificate"},
		"unknown subsidiary":             {annotated("service.beta.kubernetes.io/exoscale-loadbalancer-id", "4"), "no annotation of this name is known"},
		"a small cloud's":                {annotated(linode+"throttle", "4"), "load balancer of a cloud"},
		"a key in another case":          {annotated("metallb.io/loadbalancerIPs", "192.0.2.1"), "; did you mean metallb.io/loadBalancerIPs?"},
		"ours in another case":           {annotated(domain+"Balance", "rr"), "; did you mean svcctl.io/balance?"},
	} {
		list := Foreigners(tt.o)
		switch {
		case tt.want == "" && len(list) > 0, tt.want != "" && (len(list) != 1 || !strings.Contains(list[0].String(), tt.want)):
			t.Errorf("%s: %v, want %q", name, list, tt.want)
		}
	}
	both := annotated(awsCert, "arn:aws:acm:x", aws+"name", "x")
	if list := Unserved(both); len(list) != 1 || !strings.Contains(list[0].Field, "-name") {
		t.Errorf("named and not refused are %v", list)
	}
}

// An annotation of a load balancer that nothing is known of has a note for whoever applies it, and no other one has.
func TestNotes(t *testing.T) {
	for key, want := range map[string]bool{
		"kubernetes.civo.com/loadbalancer-algorithm": true, "k8s.cloudscale.ch/loadbalancer-vip-addresses": true, "loxilb.io/lbmode": true,
		"openelb.io/openelb": true, "nginx.ingress.kubernetes.io/backend-protocol": true, "example.com/enable-proxy-protocol": true,
		"prometheus.io/scrape": false, "meta.helm.sh/release-name": false, "external-dns.alpha.kubernetes.io/hostname": false,
		"argocd.argoproj.io/sync-wave": false, "example.com/elbow": false, aws + "internal": false, "metallb.io/loadBalancerIPs": false,
	} {
		if got := Notes(annotated(key, "x")); (len(got) == 1 && got[0].Field == Field(key)) != want || len(got) > 1 {
			t.Errorf("%s: %v, want a note: %v", key, got, want)
		}
	}
	if got := Notes(annotated("kubernetes.civo.com/loadbalancer-x", "false")); got != nil {
		t.Errorf("one that asks for nothing: %v", got)
	}
}

// TestInertAnnotations has every row, alone and beside what `kubectl apply` writes: only those that are kept have no effect.
func TestInertAnnotations(t *testing.T) {
	applied := "kubectl.kubernetes.io/last-applied-configuration"
	for i := range Table() {
		key := strings.TrimSuffix(Table()[i].Key, "*")
		if Table()[i].isPattern() {
			key += "some"
		}
		inert := Find(key).Effect == Kept
		if got := AreInert(map[string]string{key: "x"}); got != inert {
			t.Errorf("%s alone: inert %t", key, got)
		}
		if got := AreInert(map[string]string{applied: "{}", key: "x"}); got != inert {
			t.Errorf("%s: inert %t", key, got)
		}
	}
	for key, inert := range map[string]bool{applied: true, "example.com/note": true, "note": true, TLSSecret + ".https": false, ProxyMode: false, awsCert: false} {
		if got := AreInert(map[string]string{key: "x"}); got != inert {
			t.Errorf("%s: inert %t", key, got)
		}
	}
	if !AreInert(nil) {
		t.Error("no annotations have an effect")
	}
}
