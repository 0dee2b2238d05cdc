package admission

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// served opens a store as `svcctl serve` does.
func served(t *testing.T) *store.Store {
	t.Helper()
	cfg := config.Default()
	cfg.Addresses.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	cfg.Addresses.LoadBalancerPools, _ = config.ParseAddrRanges([]string{"192.0.2.0-192.0.2.9"})
	objects, err := store.Open(engine.NewMemory(), cfg.Store())
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// plain has an object of each kind that annotations are about.
const plain = `
{apiVersion: v1, kind: Service, metadata: {name: a, namespace: default}, spec: {type: LoadBalancer, ports: [{name: web, port: 443}, {name: dns, port: 53, protocol: UDP}]}}
---
{apiVersion: v1, kind: Endpoints, metadata: {name: a, namespace: default}, subsets: []}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a, namespace: default, labels: {kubernetes.io/service-name: a}}, addressType: IPv4, endpoints: []}
---
{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: default}, status: {podIP: 10.1.1.1, podIPs: [{ip: 10.1.1.1}]}}
---
{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: a, namespace: default}, spec: {addresses: [192.0.2.0/28]}}
---
{apiVersion: metallb.io/v1beta1, kind: L2Advertisement, metadata: {name: a, namespace: default}}
---
{apiVersion: metallb.io/v1beta1, kind: BGPAdvertisement, metadata: {name: a, namespace: default}}
---
{apiVersion: metallb.io/v1beta2, kind: BGPPeer, metadata: {name: a, namespace: default}, spec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.9}}
`

// objectsOf reads a manifest.
func objectsOf(t *testing.T, text string) []object.Object {
	t.Helper()
	file := manifest.Decode("a.yaml", []byte(text), manifest.DefaultLimits())
	if len(file.Problems) > 0 {
		t.Fatal(file.Problems)
	}
	var list []object.Object
	for _, o := range file.Documents {
		list = append(list, object.DeepCopy(o.Object))
	}
	return list
}

// write writes an object and returns what the client is told.
func write(t *testing.T, objects *store.Store, o object.Object) (warnings []string, err error) {
	t.Helper()
	results, err := objects.Write(store.Write{Ref: object.RefOf(o), Object: o})
	if err != nil {
		t.Fatal(err)
	}
	return results[0].Warnings, results[0].Err
}

// wrong are values that annotations cannot have, where one that is no word of any is not enough.
var wrong = map[string]string{
	"cloud.google.com/load-balancer-type":                    "Intrenal",
	"service.beta.kubernetes.io/aws-load-balancer-ssl-ports": "4443",
	"svcctl.io/tls-secret":                                   "web/x",
}

// free are the annotations that may have any value, or whose value names what other objects have.
func free(r *annotation.Row) bool {
	return strings.HasPrefix(r.Values, "any") || slices.Contains([]string{
		"kubernetes.io/service-name",
		"service.kubernetes.io/qcloud-loadbalancer-internal-subnetid",
		"svcctl.io/applyset",
	}, r.Key)
}

// Every annotation and label of the table, with a value that it cannot have, is answered to the client that writes it:
// one of svcctl is refused, all others have a warning. A new one without an answer fails here.
func TestEveryAnnotationIsAnswered(t *testing.T) {
	objects := served(t)
	all := objectsOf(t, plain)
	for _, o := range all {
		if warnings, err := write(t, objects, o); err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, %v", object.RefOf(o), warnings, err)
		}
	}
	for _, r := range annotation.Table() {
		kinds := r.Kinds
		if kinds == nil {
			kinds = []string{object.KindService}
		}
		if r.Effect == annotation.Kept || free(&r) {
			continue
		}
		asked := 0
		for _, o := range all {
			if !slices.Contains(kinds, o.GetTypeMeta().Kind) {
				continue
			}
			asked++
			key := strings.ReplaceAll(r.Key, "*", "a-thing")
			value := wrong[r.Key]
			if value == "" {
				value = "no-such_value"
			}
			o := object.DeepCopy(o)
			meta := o.GetMeta()
			values := &meta.Annotations
			if r.Label {
				values = &meta.Labels
			}
			if *values == nil {
				*values = map[string]string{}
			}
			(*values)[key] = value
			warnings, err := write(t, objects, o)
			var refused object.Errors
			errors.As(err, &refused)
			names := func(text string) bool { return strings.Contains(text, key) }
			retired := r.Effect == annotation.Named && key == r.Key // it had an effect once: a warning, so that what has it still loads
			switch ours := strings.HasPrefix(key, "svcctl.io/") && !retired; {
			case err != nil && !slices.ContainsFunc(refused, func(e object.Error) bool { return names(e.Field) }):
				t.Errorf("%s on %s: %v, want an error about it", key, o.GetTypeMeta().Kind, err)
			case err == nil && ours && key != "svcctl.io/source-sets" && key != "svcctl.io/egress-to": // whose sets are the box's
				t.Errorf("%s: %q on %s: warnings %q, want an error", key, value, o.GetTypeMeta().Kind, warnings)
			case err == nil && !slices.ContainsFunc(warnings, names):
				t.Errorf("%s: %q on %s: silence (%q)", key, value, o.GetTypeMeta().Kind, warnings)
			case err != nil && !ours && r.Of != "Kubernetes" && !strings.HasPrefix(r.Of, "Cilium"):
				t.Errorf("%s: %q on %s: %v, want a warning", key, value, o.GetTypeMeta().Kind, err)
			}
		}
		if asked == 0 && !slices.Equal(kinds, []string{object.KindNode}) {
			t.Errorf("%s: no object of %v was asked", r.Key, kinds)
		}
	}
}

// On a Service of a type that an annotation is not about, with a good value, it has a word too.
func TestEveryAnnotationOfBalancersIsAnsweredOnOthers(t *testing.T) {
	objects := served(t)
	for _, kind := range []string{"{type: ClusterIP, ports: [{port: 443}]}", "{type: NodePort, ports: [{port: 443}]}",
		"{clusterIP: None, ports: [{port: 443}]}", "{type: ExternalName, externalName: example.com}"} {
		svc := objectsOf(t, "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: default}, spec: "+kind+"}")[0]
		for key, value := range map[string]string{
			"service.beta.kubernetes.io/aws-load-balancer-internal":                          "true",
			"service.beta.kubernetes.io/aws-load-balancer-ssl-cert":                          "arn:aws:acm:x",
			"service.beta.kubernetes.io/aws-load-balancer-proxy-protocol":                    "*",
			"service.beta.kubernetes.io/aws-load-balancer-connection-idle-timeout":           "60",
			"service.beta.kubernetes.io/aws-load-balancer-backend-protocol":                  "https",
			"service.beta.kubernetes.io/aws-load-balancer-type":                              "nlb",
			"service.beta.kubernetes.io/aws-load-balancer-access-log-enabled":                "true",
			"service.beta.kubernetes.io/aws-load-balancer-healthcheck-interval":              "10",
			"service.beta.kubernetes.io/aws-load-balancer-extra-security-groups":             "office",
			"service.beta.kubernetes.io/azure-allowed-ip-ranges":                             "192.0.2.0/24",
			"metallb.io/loadBalancerIPs":                                                     "192.0.2.1",
			"svcctl.io/load-balancer-ips":                                                    "192.0.2.1",
			"service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled": "false",
		} {
			o := object.DeepCopy(svc)
			o.GetMeta().Annotations = map[string]string{key: value}
			if warnings, err := write(t, objects, o); err != nil || !slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, key) }) {
				t.Errorf("%s: %s: %q, %v, want a warning", kind, key, warnings, err)
			}
		}
		objects.Write(store.Write{Ref: object.RefOf(svc), Delete: true})
	}
}

// rulesOfLater say nothing until they hold.
type rulesOfLater struct {
	store.Rules
	hold bool
}

func (r *rulesOfLater) Remarks(o object.Object) []annotation.Remark {
	if !r.hold {
		return nil
	}
	return r.Rules.Remarks(o)
}

// A value that was stored before it was refused does not keep the rest of the object from being written; another wrong
// one does.
func TestRefusedValuesThatAreStored(t *testing.T) {
	cfg := config.Default()
	cfg.Addresses.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	with := cfg.Store()
	later := &rulesOfLater{Rules: with.Rules}
	with.Rules = later
	objects, err := store.Open(engine.NewMemory(), with)
	if err != nil {
		t.Fatal(err)
	}
	svc := objectsOf(t, `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: default, annotations: {svcctl.io/health-check: banana, svcctl.io/blance: rr, svcctl.io/tls-secret.web: b}}, spec: {ports: [{name: web, port: 443}]}}`)[0].(*object.Service)
	if _, err := write(t, objects, svc); err != nil {
		t.Fatal(err)
	}
	later.hold = true
	change := func(what string, edit func(*object.Service), want string) {
		t.Helper()
		stored, _ := objects.Get(object.RefOf(svc))
		next := object.Draft(stored).(*object.Service)
		next.Metadata.ResourceVersion = ""
		next.Metadata.Annotations = map[string]string{}
		for key, value := range stored.GetMeta().Annotations {
			next.Metadata.Annotations[key] = value
		}
		next.Spec.Ports = slices.Clone(next.Spec.Ports)
		edit(next)
		warnings, err := write(t, objects, next)
		switch {
		case want == "" && (err != nil || len(warnings) == 0):
			t.Errorf("%s: %v, warnings %q", what, err, warnings)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	change("a label", func(s *object.Service) { s.Metadata.Labels = map[string]string{"a": "b"} }, "")
	change("another wrong value", func(s *object.Service) { s.Metadata.Annotations["svcctl.io/health-check"] = "apple" }, `metadata.annotations[svcctl.io/health-check]: Invalid value: "apple": "apple" is no check`)
	change("the name of a port", func(s *object.Service) { s.Spec.Ports[0].Name = "https" }, `metadata.annotations[svcctl.io/tls-secret.web]: Invalid value`)
	change("one that is mended", func(s *object.Service) { s.Metadata.Annotations["svcctl.io/health-check"] = "tcp" }, "")
	change("wrong again", func(s *object.Service) { s.Metadata.Annotations["svcctl.io/health-check"] = "banana" }, `Invalid value: "banana"`)
}
