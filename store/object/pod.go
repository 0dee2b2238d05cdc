package object

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
)

// Pod has the fields of core/v1 Pod that this product reads: name, labels, addresses, and
// readiness. It need not be a Pod at all: three lines (name, labels, status.podIP) make a server in
// a rack an endpoint of the Services that select it.
type Pod struct {
	TypeMeta
	Metadata ObjectMeta `json:"metadata"`
	Spec     PodSpec    `json:"spec,omitzero"`
	Status   PodStatus  `json:"status,omitzero"`
}

// PodSpec is the part of core/v1 PodSpec that is read.
type PodSpec struct {
	NodeName       string      `json:"nodeName,omitempty"`
	HostNetwork    bool        `json:"hostNetwork,omitempty"`
	Hostname       string      `json:"hostname,omitempty"`
	Subdomain      string      `json:"subdomain,omitempty"`
	InitContainers []Container `json:"initContainers,omitempty" schema:"keys=name merge=name"`
	Containers     []Container `json:"containers,omitempty" schema:"keys=name merge=name"`
}

// Container is the part of core/v1 Container that is read.
type Container struct {
	Name  string `json:"name,omitempty"`
	Image string `json:"image,omitempty"`
	// RestartPolicy "Always" makes an init container a sidecar, which keeps running while the other containers run.
	RestartPolicy *string         `json:"restartPolicy,omitempty"`
	Ports         []ContainerPort `json:"ports,omitempty" schema:"keys=containerPort,protocol merge=containerPort"`
	// ReadinessProbe is how the box checks that the Pod is ready for traffic.
	ReadinessProbe *Probe `json:"readinessProbe,omitempty"`
}

// ContainerPort is the part of core/v1 ContainerPort that is read.
type ContainerPort struct {
	Name          string `json:"name,omitempty"`
	ContainerPort int32  `json:"containerPort" schema:"required"`
	Protocol      string `json:"protocol,omitempty" schema:"enum=TCP|UDP|SCTP default=TCP"`
}

// PodStatus is the part of core/v1 PodStatus that is read. In Kubernetes a controller
// writes it; here the operator does.
type PodStatus struct {
	Phase      string         `json:"phase,omitempty"`
	Conditions []PodCondition `json:"conditions,omitempty" schema:"keys=type merge=type"`
	PodIP      string         `json:"podIP,omitempty"`
	PodIPs     []PodIP        `json:"podIPs,omitempty" schema:"keys=ip merge=ip"`
}

// PodCondition is the part of core/v1 PodCondition that is read.
type PodCondition struct {
	Type   string `json:"type" schema:"required"`
	Status string `json:"status" schema:"required"`
}

// PodIP is core/v1 PodIP.
type PodIP struct {
	IP string `json:"ip" schema:"required"`
}

// The values of PodStatus.Phase.
const (
	PodPending   = "Pending"
	PodRunning   = "Running"
	PodSucceeded = "Succeeded"
	PodFailed    = "Failed"
	PodUnknown   = "Unknown"
)

const (
	// podReady is the type of the PodCondition that decides whether a Pod may get traffic.
	podReady = "Ready"
	// restartAlways is the value of Container.RestartPolicy that makes an init container a sidecar.
	restartAlways = "Always"
)

func (o *Pod) GetMeta() *ObjectMeta { return &o.Metadata }

// Terminal reports whether the Pod has ended for good, so that it is no endpoint.
func (o *Pod) Terminal() bool {
	return o.Status.Phase == PodSucceeded || o.Status.Phase == PodFailed
}

// Terminating reports whether the Pod is being deleted.
func (o *Pod) Terminating() bool { return o.Metadata.DeletionTimestamp != nil }

// Ready reports whether the Pod may get traffic. The condition Ready decides. Without any condition, a Pod is ready if its phase is Running or empty.
// Pods of Kubernetes always have conditions and a phase; a Pod without them stands for a server that is up.
func (o *Pod) Ready() bool {
	for _, condition := range o.Status.Conditions {
		if condition.Type == podReady {
			return condition.Status == "True"
		}
	}
	return len(o.Status.Conditions) == 0 && (o.Status.Phase == "" || o.Status.Phase == PodRunning)
}

// Judged reports whether the Pod has the condition Ready, which a kubelet sets.
func (o *Pod) Judged() bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c PodCondition) bool { return c.Type == podReady })
}

// Running returns an iterator over the containers that run for the whole life of the Pod (sidecars included), with their field path:
// "spec.containers[0]".
func (o *Pod) Running() iter.Seq2[string, *Container] {
	return func(yield func(string, *Container) bool) {
		for i := range o.Spec.InitContainers {
			if c := &o.Spec.InitContainers[i]; Deref(c.RestartPolicy) == restartAlways && !yield(podSpecPath.child("initContainers").index(i).String(), c) {
				return
			}
		}
		for i := range o.Spec.Containers {
			if !yield(podSpecPath.child("containers").index(i).String(), &o.Spec.Containers[i]) {
				return
			}
		}
	}
}

// Probed reports whether a container of the Pod has a readinessProbe.
func (o *Pod) Probed() bool {
	for _, c := range o.Running() {
		if c.ReadinessProbe != nil {
			return true
		}
	}
	return false
}

// Addr returns the Pod's address of a family, IPv4 or IPv6; the zero Addr if it has none.
func (o *Pod) Addr(family string) netip.Addr {
	for _, ip := range o.IPs() {
		if addr, ok := parseLegacyIP(ip); ok && familyOf(ip) == family {
			return addr
		}
	}
	return netip.Addr{}
}

// IPs returns status.podIPs, or status.podIP alone if Default has not been called yet and
// only that is set.
func (o *Pod) IPs() []string {
	if len(o.Status.PodIPs) == 0 && o.Status.PodIP != "" {
		return []string{o.Status.PodIP}
	}
	return Texts(o.Status.PodIPs, func(ip PodIP) string { return ip.IP })
}

// TargetPort returns the Pod's port number for a Service port: its targetPort or, if
// that is a name, the first port of that name and protocol in a container that keeps
// running (FindPort of pkg/api/v1/pod). It returns false if the Pod has none.
func (o *Pod) TargetPort(port *ServicePort) (int32, bool) {
	if !port.TargetPort.IsString {
		return port.TargetPort.Int, true
	}
	find := func(containers []Container) (int32, bool) {
		for _, container := range containers {
			for _, p := range container.Ports {
				if p.Name == port.TargetPort.Name && p.Protocol == port.Protocol {
					return p.ContainerPort, true
				}
			}
		}
		return 0, false
	}
	if number, found := find(o.Spec.Containers); found {
		return number, true
	}
	for _, container := range o.Spec.InitContainers {
		if Deref(container.RestartPolicy) != restartAlways {
			continue
		}
		if number, found := find([]Container{container}); found {
			return number, true
		}
	}
	return 0, false
}

// setDefaults sets the defaults of SetDefaults_Pod for the fields that are read here. It also sets podIP from podIPs, or podIPs from podIP.
func (pod *Pod) setDefaults() {
	for _, containers := range [][]Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for j := range containers[i].Ports {
				if port := &containers[i].Ports[j]; port.Protocol == "" {
					port.Protocol = ProtocolTCP
				}
			}
			if probe := containers[i].ReadinessProbe; probe != nil {
				defaultProbe(probe)
			}
		}
	}
	switch status := &pod.Status; {
	case len(status.PodIPs) == 0 && status.PodIP != "":
		status.PodIPs = []PodIP{{IP: status.PodIP}}
	case status.PodIP == "" && len(status.PodIPs) > 0:
		status.PodIP = status.PodIPs[0].IP
	}
}

var (
	podSpecPath   = root("spec")
	podStatusPath = root("status")
)

func (o *Pod) validate(previous Object) Errors {
	old, _ := previous.(*Pod)
	var errs Errors
	spec := &o.Spec
	if spec.NodeName != "" {
		errs = append(errs, validateNodeName(podSpecPath.child("nodeName"), &spec.NodeName)...)
	}
	if spec.Hostname != "" {
		errs = append(errs, invalidFor(podSpecPath.child("hostname"), spec.Hostname, DNSLabelProblems(spec.Hostname))...)
	}
	if spec.Subdomain != "" {
		errs = append(errs, invalidFor(podSpecPath.child("subdomain"), spec.Subdomain, DNSLabelProblems(spec.Subdomain))...)
	}
	errs = append(errs, validateContainers(podSpecPath.child("initContainers"), spec.InitContainers)...)
	errs = append(errs, validateContainers(podSpecPath.child("containers"), spec.Containers)...)
	if phase := o.Status.Phase; phase != "" {
		errs = append(errs, oneOf(podStatusPath.child("phase"), phase,
			[]string{PodFailed, PodPending, PodRunning, PodSucceeded, PodUnknown})...)
	}
	return append(errs, validatePodIPs(o, old)...)
}

func validateContainers(p path, containers []Container) Errors {
	var errs Errors
	for i := range containers {
		if probe := containers[i].ReadinessProbe; probe != nil {
			errs = append(errs, validateProbe(p.index(i).child("readinessProbe"), probe)...)
		}
		for j := range containers[i].Ports {
			portPath, port := p.index(i).child("ports").index(j), &containers[i].Ports[j]
			if port.Name != "" {
				errs = append(errs, invalidFor(portPath.child("name"), port.Name, portNameProblems(port.Name))...)
			}
			errs = append(errs, invalidFor(portPath.child("containerPort"), port.ContainerPort, portNumberProblems(port.ContainerPort))...)
			errs = append(errs, oneOf(portPath.child("protocol"), port.Protocol, supportedProtocols())...)
		}
	}
	return errs
}

// validatePodIPs is ValidatePodIPs of pkg/apis/core/validation. It also requires addresses
// that packets can be sent to.
func validatePodIPs(o, old *Pod) Errors {
	kept := set{}
	if old != nil {
		kept = setOf(old.IPs())
	}
	ipsPath, status := podStatusPath.child("podIPs"), &o.Status
	var errs Errors
	families := set{}
	for i, ip := range status.PodIPs {
		p := ipsPath.index(i).child("ip")
		if i == 0 && ip.IP == status.PodIP {
			p = podStatusPath.child("podIP")
		}
		errs = append(errs, checkReachableIP(p, ip.IP, kept)...)
		if addr, ok := parseLegacyIP(ip.IP); ok && addr.IsMulticast() && !addr.IsLinkLocalMulticast() {
			errs = append(errs, invalid(p, ip.IP, "may not be a multicast address (224.0.0.0/4, ff00::/8)")...)
		}
		family := familyOf(ip.IP)
		if family != "" && families[family] {
			errs = append(errs, invalid(ipsPath, ip.IP, "may specify no more than one IP for each IP family")...)
		}
		families[family] = true
	}
	if len(status.PodIPs) > 0 && status.PodIP != status.PodIPs[0].IP {
		errs = append(errs, invalid(podStatusPath.child("podIP"), status.PodIP, "must be the first of status.podIPs")...)
	}
	return errs
}

func (o *Pod) warnings() []string {
	var warnings []string
	for i, ip := range o.Status.PodIPs {
		warnings = append(warnings, ipWarnings(podStatusPath.child("podIPs").index(i).child("ip"), ip.IP)...)
	}
	if len(o.Status.PodIPs) == 0 && (o.Status.Phase == "" || o.Status.Phase == PodRunning) {
		warnings = append(warnings, "status.podIP: without an address the Pod is no endpoint of any Service")
	}
	return warnings
}

// Probe has the fields of core/v1 Probe that are read.
type Probe struct {
	Exec      *ExecAction      `json:"exec,omitempty"`
	HTTPGet   *HTTPGetAction   `json:"httpGet,omitempty"`
	TCPSocket *TCPSocketAction `json:"tcpSocket,omitempty"`
	GRPC      *GRPCAction      `json:"grpc,omitempty"`
	// The fields ending in Seconds are in seconds; 0 means the default.
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	TimeoutSeconds      int32 `json:"timeoutSeconds,omitempty"`
	PeriodSeconds       int32 `json:"periodSeconds,omitempty"`
	// The thresholds are numbers of consecutive results; 0 means the default.
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}

// ExecAction is core/v1 ExecAction.
type ExecAction struct {
	Command []string `json:"command,omitempty"`
}

// HTTPGetAction is core/v1 HTTPGetAction.
type HTTPGetAction struct {
	Path        string       `json:"path,omitempty"`
	Port        IntOrString  `json:"port" schema:"required"`
	Host        string       `json:"host,omitempty"`
	Scheme      string       `json:"scheme,omitempty" schema:"enum=HTTP|HTTPS"`
	HTTPHeaders []HTTPHeader `json:"httpHeaders,omitempty"`
}

// HTTPHeader is core/v1 HTTPHeader.
type HTTPHeader struct {
	Name  string `json:"name" schema:"required"`
	Value string `json:"value" schema:"required"`
}

// TCPSocketAction is core/v1 TCPSocketAction.
type TCPSocketAction struct {
	Port IntOrString `json:"port" schema:"required"`
	Host string      `json:"host,omitempty"`
}

// GRPCAction is core/v1 GRPCAction.
type GRPCAction struct {
	Port    int32   `json:"port" schema:"required"`
	Service *string `json:"service,omitempty"`
}

// The values of HTTPGetAction.Scheme.
const (
	SchemeHTTP  = "HTTP"
	SchemeHTTPS = "HTTPS"
)

// defaultProbe sets the defaults of a probe, like SetDefaults_Probe and SetDefaults_HTTPGetAction of Kubernetes, and those of GRPCAction.
func defaultProbe(p *Probe) {
	for _, field := range []struct {
		is     *int32
		absent int32
	}{{&p.TimeoutSeconds, 1}, {&p.PeriodSeconds, 10}, {&p.SuccessThreshold, 1}, {&p.FailureThreshold, 3}} {
		*field.is = cmp.Or(*field.is, field.absent)
	}
	if p.HTTPGet != nil {
		p.HTTPGet.Path = cmp.Or(p.HTTPGet.Path, "/")
		p.HTTPGet.Scheme = cmp.Or(p.HTTPGet.Scheme, SchemeHTTP)
	}
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = new(string)
	}
}

// headerNameRE is httpHeaderNameFmt of apimachinery pkg/util/validation.
var headerNameRE = &pattern{text: `^[-A-Za-z0-9]+$`}

const headerNameText = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')"

// validateProbe is validateReadinessProbe of pkg/apis/core/validation.
func validateProbe(p path, probe *Probe) Errors {
	var errs Errors
	for _, field := range []struct {
		name  string
		value int32
	}{
		{"initialDelaySeconds", probe.InitialDelaySeconds}, {"timeoutSeconds", probe.TimeoutSeconds}, {"periodSeconds", probe.PeriodSeconds},
		{"successThreshold", probe.SuccessThreshold}, {"failureThreshold", probe.FailureThreshold},
	} {
		if field.value < 0 {
			errs = append(errs, invalid(p.child(field.name), field.value, "must be greater than or equal to 0")...)
		}
	}
	handlers := 0
	handler := func(name string, there bool, validate func(path) Errors) {
		switch {
		case !there:
		case handlers > 0:
			errs = append(errs, forbidden(p.child(name), "may not specify more than 1 handler type")...)
		default:
			handlers++
			errs = append(errs, validate(p.child(name))...)
		}
	}
	handler("exec", probe.Exec != nil, func(p path) Errors {
		if len(probe.Exec.Command) == 0 {
			return required(p.child("command"), "")
		}
		return nil
	})
	handler("httpGet", probe.HTTPGet != nil, func(p path) Errors { return validateHTTPGet(p, probe.HTTPGet) })
	handler("tcpSocket", probe.TCPSocket != nil, func(p path) Errors { return checkPort(p.child("port"), probe.TCPSocket.Port) })
	handler("grpc", probe.GRPC != nil, func(p path) Errors {
		return invalidFor(p.child("port"), probe.GRPC.Port, portNumberProblems(probe.GRPC.Port))
	})
	if handlers == 0 {
		errs = append(errs, required(p, "must specify a handler type")...)
	}
	return errs
}

func validateHTTPGet(p path, get *HTTPGetAction) Errors {
	errs := checkPort(p.child("port"), get.Port)
	errs = append(errs, oneOf(p.child("scheme"), get.Scheme, []string{SchemeHTTP, SchemeHTTPS})...)
	for i, header := range get.HTTPHeaders {
		if !headerNameRE.MatchString(header.Name) {
			errs = append(errs, invalid(p.child("httpHeaders").index(i).child("name"), header.Name, headerNameText)...)
		}
	}
	return errs
}
