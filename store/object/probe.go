package object

import (
	"regexp"
	"slices"
)

// Probe has the fields of core/v1 Probe that are read.
type Probe struct {
	Exec      *ExecAction      `json:"exec,omitempty"`
	HTTPGet   *HTTPGetAction   `json:"httpGet,omitempty"`
	TCPSocket *TCPSocketAction `json:"tcpSocket,omitempty"`
	GRPC      *GRPCAction      `json:"grpc,omitempty"`
	// Seconds; 0 stands for the default.
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	TimeoutSeconds      int32 `json:"timeoutSeconds,omitempty"`
	PeriodSeconds       int32 `json:"periodSeconds,omitempty"`
	// Results in a row; 0 stands for the default.
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
	Port        IntOrString  `json:"port"`
	Host        string       `json:"host,omitempty"`
	Scheme      string       `json:"scheme,omitempty"`
	HTTPHeaders []HTTPHeader `json:"httpHeaders,omitempty"`
}

// HTTPHeader is core/v1 HTTPHeader.
type HTTPHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// TCPSocketAction is core/v1 TCPSocketAction.
type TCPSocketAction struct {
	Port IntOrString `json:"port"`
	Host string      `json:"host,omitempty"`
}

// GRPCAction is core/v1 GRPCAction.
type GRPCAction struct {
	Port    int32   `json:"port"`
	Service *string `json:"service,omitempty"`
}

// HTTPGetAction.Scheme.
const (
	SchemeHTTP  = "HTTP"
	SchemeHTTPS = "HTTPS"
)

// deepCopy is a copy of a Probe that shares nothing with it; nil stays nil.
func (p *Probe) deepCopy() *Probe {
	c := clone(p)
	if c == nil {
		return nil
	}
	if c.Exec != nil {
		c.Exec = &ExecAction{slices.Clone(p.Exec.Command)}
	}
	if c.HTTPGet = clone(p.HTTPGet); c.HTTPGet != nil {
		c.HTTPGet.HTTPHeaders = slices.Clone(p.HTTPGet.HTTPHeaders)
	}
	c.TCPSocket = clone(p.TCPSocket)
	if c.GRPC = clone(p.GRPC); c.GRPC != nil {
		c.GRPC.Service = clone(p.GRPC.Service)
	}
	return c
}

// defaultProbe is SetDefaults_Probe, SetDefaults_HTTPGetAction and the default of GRPCAction.
func defaultProbe(p *Probe) {
	for _, field := range []struct {
		is     *int32
		absent int32
	}{{&p.TimeoutSeconds, 1}, {&p.PeriodSeconds, 10}, {&p.SuccessThreshold, 1}, {&p.FailureThreshold, 3}} {
		if *field.is == 0 {
			*field.is = field.absent
		}
	}
	if p.HTTPGet != nil {
		if p.HTTPGet.Path == "" {
			p.HTTPGet.Path = "/"
		}
		if p.HTTPGet.Scheme == "" {
			p.HTTPGet.Scheme = SchemeHTTP
		}
	}
	if p.GRPC != nil && p.GRPC.Service == nil {
		p.GRPC.Service = new(string)
	}
}

// headerNameRE is httpHeaderNameFmt of apimachinery pkg/util/validation.
var headerNameRE = regexp.MustCompile(`^[-A-Za-z0-9]+$`)

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
	handler("tcpSocket", probe.TCPSocket != nil, func(p path) Errors { return validateProbePort(p.child("port"), probe.TCPSocket.Port) })
	handler("grpc", probe.GRPC != nil, func(p path) Errors {
		return invalidFor(p.child("port"), probe.GRPC.Port, portNumberProblems(probe.GRPC.Port))
	})
	if handlers == 0 {
		errs = append(errs, required(p, "must specify a handler type")...)
	}
	return errs
}

func validateHTTPGet(p path, get *HTTPGetAction) Errors {
	errs := validateProbePort(p.child("port"), get.Port)
	errs = append(errs, oneOf(p.child("scheme"), get.Scheme, []string{SchemeHTTP, SchemeHTTPS})...)
	for i, header := range get.HTTPHeaders {
		if !headerNameRE.MatchString(header.Name) {
			errs = append(errs, invalid(p.child("httpHeaders").index(i).child("name"), header.Name, headerNameText)...)
		}
	}
	return errs
}

func validateProbePort(p path, port IntOrString) Errors {
	if port.IsString {
		return invalidFor(p, port.Name, portNameProblems(port.Name))
	}
	return invalidFor(p, port.Int, portNumberProblems(port.Int))
}
