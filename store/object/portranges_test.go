package object

import (
	"reflect"
	"strings"
	"testing"
)

func TestParsePortRanges(t *testing.T) {
	ports := []ServicePort{{Name: "rtp", Port: 5060, Protocol: ProtocolUDP}, {Name: "ftp", Port: 21, Protocol: ProtocolTCP}}
	for value, want := range map[string][]PortRange{
		"rtp=10000-20000/UDP":           {{"rtp", "UDP", 10000, 20000}},
		"rtp=10000-20000":               {{"rtp", "UDP", 10000, 20000}},
		" ftp = 1 - 2 / udp , rtp=7/*":  {{"ftp", "UDP", 1, 2}, {"rtp", "TCP", 7, 7}, {"rtp", "UDP", 7, 7}, {"rtp", "SCTP", 7, 7}},
		"ftp=*":                         {{"ftp", "TCP", 1, 65535}, {"ftp", "UDP", 1, 65535}, {"ftp", "SCTP", 1, 65535}},
		"ftp=*/TCP,rtp=1-65535/UDP":     {{"ftp", "TCP", 1, 65535}, {"rtp", "UDP", 1, 65535}},
		"rtp=1-5, rtp=6-9, ftp=1-5/TCP": {{"rtp", "UDP", 1, 5}, {"rtp", "UDP", 6, 9}, {"ftp", "TCP", 1, 5}},
	} {
		if got, err := ParsePortRanges(value, ports); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %v, %v; want %v", value, got, err, want)
		}
	}
	unnamed := []ServicePort{{Port: 80}}
	if got, err := ParsePortRanges("8000-8999", unnamed); err != nil || !reflect.DeepEqual(got, []PortRange{{"", "TCP", 8000, 8999}}) {
		t.Errorf("of the port without a name: %v, %v", got, err)
	}
	for value, want := range map[string]string{
		"": "must be NAME=FIRST-LAST/PROTOCOL", "rtp=": "must be NAME=FIRST-LAST/PROTOCOL", "rtp=0-5": "ports from 1 to 65535", "rtp=9-8": "ports from 1 to 65535",
		"rtp=1-65536": "ports from 1 to 65535", "rtp=1-2,": `"": must be`, "1-2": "must begin with the name of a port of the Service", "sip=1-2": `"sip" is no name of a port of the Service`,
		"rtp=1-2/GRE": `"GRE" is no protocol: supported values: "*", "SCTP", "TCP", "UDP"`, "rtp=1-5,ftp=5-6/UDP": "overlaps rtp=1-5/UDP", "rtp=*,ftp=7": "overlaps rtp=1-65535/TCP",
		strings.Repeat("rtp=1-1,", 16) + "rtp=2-2": "overlaps",
		"rtp=1,rtp=2,rtp=3,rtp=4,rtp=5,rtp=6,rtp=7,rtp=8,rtp=9,rtp=10,rtp=11,rtp=12,rtp=13,rtp=14,rtp=15,rtp=16,rtp=17": "must have at most 16 ranges",
	} {
		if got, err := ParsePortRanges(value, ports); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is %v, %v; want %q", value, got, err, want)
		}
	}
}

// A value that stands there does not prevent an update, unless its port is gone.
func TestPortRangesAreCheckedWhenTheyChange(t *testing.T) {
	svc := func(value, port string) *Service {
		s := &Service{TypeMeta: TypeMeta{Kind: KindService, APIVersion: "v1"}}
		s.Metadata = ObjectMeta{Name: "web", Namespace: "default", Annotations: map[string]string{AnnotationPortRanges: value}}
		s.Spec.Ports = []ServicePort{{Name: port, Port: 80, Protocol: ProtocolTCP}}
		return s
	}
	if errs := checkPortRanges(svc("bad", "a"), svc("bad", "a")); len(errs) > 0 {
		t.Errorf("a value that was there is refused: %v", errs)
	}
	wantTexts(t, checkPortRanges(svc("a=1-2", "b"), svc("a=1-2", "a")), `metadata.annotations[svcctl.io/port-ranges]: Invalid value: "a=1-2": "a" is no name of a port of the Service`)
	wantTexts(t, checkPortRanges(svc("a=1-2", "a"), nil))
}
