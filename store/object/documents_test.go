package object

import (
	"encoding/json"
	"reflect"
	"syscall"
	"testing"
	"time"
)

// documents are the manifests of the Kubernetes documentation of Services, from its
// first to its present form, those that differ.
func documents() []string {
	return []string{
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"my-service"},"spec":{"selector":{"app":"MyApp"},"ports":[{"protocol":"TCP","port":80,"targetPort":9376}]}}`,
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"my-service"},"spec":{"ports":[{"protocol":"TCP","port":80,"targetPort":9376}]}}`,
		`{"kind":"Endpoints","apiVersion":"v1","metadata":{"name":"my-service"},"subsets":[{"addresses":[{"ip":"1.2.3.4"}],"ports":[{"port":9376}]}]}`,
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"my-service"},"spec":{"selector":{"app":"MyApp"},"ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":9376},{"name":"https","protocol":"TCP","port":443,"targetPort":9377}]}}`,
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"my-service"},"spec":{"selector":{"app":"MyApp"},"ports":[{"protocol":"TCP","port":80,"targetPort":9376,"nodePort":30061}],"clusterIP":"10.0.171.239","loadBalancerIP":"78.11.24.19","type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[{"ip":"146.148.47.155"}]}}}`,
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"my-service"},"spec":{"selector":{"app":"MyApp"},"ports":[{"name":"http","protocol":"TCP","port":80,"targetPort":9376}],"externalIPs":["80.11.12.10"]}}`,
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"my-service","namespace":"prod"},"spec":{"type":"ExternalName","externalName":"my.database.example.com"}}`,
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"nginx-service"},"spec":{"selector":{"app.kubernetes.io/name":"proxy"},"ports":[{"name":"name-of-service-port","protocol":"TCP","port":80,"targetPort":"http-web-svc"}]}}`,
		`{"kind":"EndpointSlice","apiVersion":"discovery.k8s.io/v1","metadata":{"name":"my-service-1","labels":{"kubernetes.io/service-name":"my-service"}},"addressType":"IPv4","ports":[{"name":"","appProtocol":"http","protocol":"TCP","port":9376}],"endpoints":[{"addresses":["10.4.5.6"]},{"addresses":["10.1.2.3"]}]}`,
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"my-service"},"spec":{"type":"NodePort","selector":{"app.kubernetes.io/name":"MyApp"},"ports":[{"port":80,"targetPort":80,"nodePort":30007}]}}`,
		`{"kind":"Service","apiVersion":"v1","metadata":{"name":"my-service","annotations":{"service.beta.kubernetes.io/aws-load-balancer-internal":"0.0.0.0/0","service.beta.kubernetes.io/aws-load-balancer-ssl-ports":"443,8443"}},"spec":{"clusterIP":"None","selector":{"app":"MyApp"}}}`,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"nginx","labels":{"app.kubernetes.io/name":"proxy"}},"spec":{"containers":[{"name":"nginx","image":"nginx:stable","ports":[{"containerPort":80,"name":"http-web-svc"}]}]}}`,
	}
}

func decodeDocument(t *testing.T, document string) Object {
	t.Helper()
	var meta TypeMeta
	if err := json.Unmarshal([]byte(document), &meta); err != nil {
		t.Fatal(err)
	}
	s := StrategyFor(meta.APIVersion, meta.Kind)
	if s == nil {
		t.Fatalf("no kind %v", meta)
	}
	return decode(t, s.New(), document)
}

func TestDocumentsAreAccepted(t *testing.T) {
	for _, document := range documents() {
		o := decodeDocument(t, document)
		Default(o)
		wantTexts(t, Validate(o, Options{}))
		if svc, ok := o.(*Service); ok {
			wantTexts(t, DefaultFamilies(svc, nil, only4))
			wantTexts(t, Validate(o, Options{}))

			// The same document again changes nothing.
			again := decodeDocument(t, document).(*Service)
			wantTexts(t, update(again, svc))
			if !reflect.DeepEqual(again.Spec, svc.Spec) {
				t.Errorf("applied again: %s\nwas: %s", toJSON(t, again), toJSON(t, svc))
			}
		}
	}
}

// decodeLoosely reads a document of any kind as far as it can.
func decodeLoosely(document []byte, kind string) Object {
	apiVersion := APIVersionCore
	if kind == KindEndpointSlice {
		apiVersion = APIVersionDiscovery
	}
	o := StrategyFor(apiVersion, kind).New()
	if json.Unmarshal(document, o) != nil {
		return nil
	}
	return o
}

// Whatever is decoded, nothing panics, checks change nothing, and what has been
// accepted is accepted again.
func FuzzValidate(f *testing.F) {
	for _, document := range documents() {
		f.Add([]byte(document), []byte(documents()[4]))
	}
	f.Add([]byte(`{"spec":{"nodeName":"a","initContainers":[{"restartPolicy":"Always","ports":[{"name":"x","containerPort":1}]}]},"status":{"phase":"Running","podIP":"010.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`),
		[]byte(`{"status":{"podIP":"10.0.0.001"}}`))
	f.Add([]byte(`{"spec":{"type":"LoadBalancer","ipFamilyPolicy":"SingleStack"}}`),
		[]byte(`{"spec":{"clusterIP":"172.30.0.041","clusterIPs":["172.30.0.041","fd00::1"],"ipFamilyPolicy":"PreferDualStack","ipFamilies":["IPv4","IPv6"]}}`))
	f.Fuzz(func(t *testing.T, document, before []byte) {
		for _, kind := range []string{KindService, KindEndpoints, KindEndpointSlice, KindPod} {
			o, old := decodeLoosely(document, kind), decodeLoosely(before, kind)
			if o == nil {
				continue
			}
			fuzzNew(t, DeepCopy(o))
			if old != nil {
				fuzzUpdate(t, o, old)
			}
		}
	})
}

func fuzzNew(t *testing.T, o Object) {
	NormalizeLegacyIPs(o)
	Default(o)
	again := DeepCopy(o)
	Default(again)
	if !reflect.DeepEqual(o, again) {
		t.Errorf("Default again: %s\nwas: %s", toJSON(t, again), toJSON(t, o))
	}
	for _, box := range [][]string{nil, only4, dual, dual6} {
		c := DeepCopy(o)
		var errs Errors
		if svc, ok := c.(*Service); ok {
			errs = DefaultFamilies(svc, nil, box)
			if len(errs) == 0 && svc.NeedsClusterIP() && (svc.Spec.IPFamilyPolicy == nil || len(svc.Spec.IPFamilies) == 0) {
				t.Errorf("no families: %s", familiesOf(svc))
			}
		}
		checked := DeepCopy(c)
		errs = Join(errs, Validate(c, Options{}))
		_ = errs.Error()
		Warnings(c)
		if !reflect.DeepEqual(c, checked) {
			t.Errorf("Validate changed the object")
		}
		if len(errs) > 0 {
			continue
		}
		// The accepted object, put in its own place.
		updated := DeepCopy(c)
		if svc, ok := updated.(*Service); ok {
			errs = update(svc, c.(*Service))
		} else {
			errs = ValidateUpdate(updated, c, Options{})
		}
		if len(errs) > 0 && len(box) == 2 {
			t.Errorf("the same again: %v\n%s", errs, toJSON(t, c))
		}
	}
}

func fuzzUpdate(t *testing.T, o, old Object) {
	Default(o)
	Default(old)
	kept := DeepCopy(old)
	if svc, ok := o.(*Service); ok {
		PatchFromOld(svc, old.(*Service))
		DefaultFamilies(svc, old.(*Service), dual)
	}
	_ = ValidateUpdate(o, old, Options{}).Error()
	if !reflect.DeepEqual(old, kept) {
		t.Errorf("the stored object changed to %s\nwas %s", toJSON(t, old), toJSON(t, kept))
	}
	if places := shared("", reflect.ValueOf(o), reflect.ValueOf(old)); len(places) > 0 {
		t.Errorf("the update shares %v with the stored object", places)
	}
}

// Hostile lengths must not take more than a time proportional to them.
func TestLongListsAreChecked(t *testing.T) {
	const n = 20000
	s := goodService(func(s *Service) {
		s.Spec.Ports = make([]ServicePort, n)
		s.Spec.ExternalIPs = make([]string, n)
		s.Spec.IPFamilies = make([]string, n)
		s.Spec.ClusterIPs = make([]string, n)
		s.Metadata.Finalizers = make([]string, n)
		s.Metadata.OwnerReferences = make([]OwnerReference, n)
		for i := range n {
			s.Metadata.OwnerReferences[i].Controller = new(true)
		}
	})
	old := DeepCopy(s)
	start := cpuTime(t)
	update(s, old)
	Validate(s, Options{})
	// A quadratic step alone would take many times this.
	if took := cpuTime(t) - start; took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}

// cpuTime is that of this process so far: a busy machine does not add to it.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
