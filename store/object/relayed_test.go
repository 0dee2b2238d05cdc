package object

import (
	"strings"
	"testing"
)

func TestRelayedAnnotationsAreChecked(t *testing.T) {
	svc := func(protocols []string, annotations ...string) *Service {
		s := &Service{TypeMeta: TypeMeta{Kind: KindService, APIVersion: "v1"}}
		s.Metadata = ObjectMeta{Name: "web", Namespace: "default", Annotations: map[string]string{}}
		for i := 0; i < len(annotations); i += 2 {
			s.Metadata.Annotations[annotations[i]] = annotations[i+1]
		}
		for _, p := range protocols {
			s.Spec.Ports = append(s.Spec.Ports, ServicePort{Port: 53, Protocol: p})
		}
		return s
	}
	udp, mixed := []string{ProtocolUDP, ProtocolSCTP}, []string{ProtocolUDP, ProtocolTCP}
	const aws = "service.beta.kubernetes.io/aws-load-balancer-proxy-protocol"
	for _, good := range []*Service{
		svc(udp), svc(udp, AnnotationProxyMode, "userspace"), svc(udp, AnnotationProxyMode, "kernel"), svc(udp, aws, "*"),
		svc(udp, AnnotationProxyProtocol, "none"), svc(udp, AnnotationTLSSecret, "none", AnnotationBackendProtocol, "tcp"),
		svc(mixed, AnnotationProxyProtocol, "v2", AnnotationProxyFrom, "192.0.2.1", AnnotationTLSSecret+".dns", "www"),
		svc(mixed, AnnotationProxyMode, "kernel", AnnotationProxyProtocol, "none"),
		svc(mixed, AnnotationProxyMode, "kernel", AnnotationTLSSecret+".53", "www"), // its other port is served
		svc(nil, AnnotationProxyProtocol, "v2"),
	} {
		wantTexts(t, checkRelayed(good, nil))
	}
	const (
		noTCP  = " over TCP alone, and the Service has no TCP port: leave the annotation out, or add a port of protocol TCP"
		header = "there are headers of the PROXY protocol" + noTCP
	)
	bad := svc(udp, AnnotationProxyProtocol, "v2", AnnotationProxyFrom, "192.0.2.1", AnnotationTLSSecret+".dns", "www", AnnotationBackendProtocol, "http")
	wantTexts(t, checkRelayed(bad, nil),
		`metadata.annotations[svcctl.io/backend-protocol]: Invalid value: "http": there is TLS or HTTP`+noTCP,
		`metadata.annotations[svcctl.io/proxy-protocol]: Invalid value: "v2": `+header,
		`metadata.annotations[svcctl.io/proxy-protocol-from]: Invalid value: "192.0.2.1": `+header,
		`metadata.annotations[svcctl.io/tls-secret.dns]: Invalid value: "www": there is TLS`+noTCP)
	kernel := svc(mixed, AnnotationProxyMode, "Kernel", AnnotationProxyProtocol, "1", AnnotationTLSSecret, "www")
	wantTexts(t, checkRelayed(kernel, nil),
		`metadata.annotations[svcctl.io/proxy-mode]: Invalid value: "Kernel": must not be given together with svcctl.io/proxy-protocol, which needs a relay: leave one of the two out`)

	// What was stored stays, also with another value; what an update makes wrong is refused.
	wantTexts(t, checkRelayed(bad, bad))
	wantTexts(t, checkRelayed(kernel, kernel))
	was := svc(udp, AnnotationProxyProtocol, "v1")
	wantTexts(t, checkRelayed(svc(udp, AnnotationProxyProtocol, "v2"), was))
	wantTexts(t, checkRelayed(svc(udp, AnnotationProxyProtocol, "v2"), svc(mixed, AnnotationProxyProtocol, "v2")),
		`metadata.annotations[svcctl.io/proxy-protocol]: Invalid value: "v2": `+header)
}

// TestAnnotationsOfOthersCostNothing: an annotation that cannot ask for a relay, such as the long one of kubectl apply, is not copied.
func TestAnnotationsOfOthersCostNothing(t *testing.T) {
	long := strings.Repeat(`{"apiVersion":"v1","kind":"Service"}`, 100)
	if n := testing.AllocsPerRun(10, func() { asksRelay(AnnotationLastApplied, long) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
