package annotation

import (
	_ "embed" // rows.txt
	"slices"
	"strings"
	"sync"

	"svcctl.io/svcctl/store/object"
)

// Effect describes how svcctl handles an annotation.
type Effect string

// The effects of annotations.
const (
	Acts    Effect = "acts"    // the annotation is implemented
	Kept    Effect = "kept"    // the annotation is informational, and is stored without a warning
	Named   Effect = "named"   // the annotation has no effect and causes a warning
	Refused Effect = "refused" // the annotation has no effect, and the part of the Service that would be served wrongly without it is not served
)

// The values of Row.Of that the code compares with.
const (
	ofSvcctl     = "svcctl"
	ofKubernetes = "Kubernetes"
)

// The prefixes of the annotations of svcctl and of each cloud.
const (
	domain       = "svcctl.io/"
	aws          = "service.beta.kubernetes.io/aws-load-balancer-"
	azure        = "service.beta.kubernetes.io/azure-"
	openStack    = "loadbalancer.openstack.org/"
	oracle       = "service.beta.kubernetes.io/oci-load-balancer-"
	alibaba      = "service.beta.kubernetes.io/alibaba-cloud-loadbalancer-"
	alibabaOld   = "service.beta.kubernetes.io/alicloud-loadbalancer-"
	tencentCloud = "service.cloud.tencent.com/"
	digitalOcean = "service.beta.kubernetes.io/do-loadbalancer-"
	hetzner      = "load-balancer.hetzner.cloud/"
	scaleway     = "service.beta.kubernetes.io/scw-loadbalancer-"
	linode       = "service.beta.kubernetes.io/linode-loadbalancer-"
	vultr        = "service.beta.kubernetes.io/vultr-loadbalancer-"
	huawei       = "kubernetes.io/elb."
)

// The keys of annotations and labels that this package reads, except those about TLS, relayed ports and the log of connections.
const (
	LoadBalancerIPs = domain + "load-balancer-ips"
	SharingKey      = domain + "allow-shared-ip"
	// Announce, MED and Prepend are annotations of L2Advertisements and BGPAdvertisements, TTLSecurity of BGPPeers,
	// InternalPool of IPAddressPools.
	Announce     = domain + "announce"
	MED          = domain + "med"
	Prepend      = domain + "prepend"
	TTLSecurity  = domain + "ttl-security"
	InternalPool = domain + "internal-pool"
	// ExcludeNode is the Kubernetes label of Nodes that must not get load balancer traffic.
	ExcludeNode = "node.kubernetes.io/exclude-from-external-load-balancers"

	skipMirror   = "endpointslice.kubernetes.io/skip-mirror"
	overCapacity = "endpoints.kubernetes.io/over-capacity"

	awsType       = aws + "type"
	awsInternal   = aws + "internal"
	awsCrossZone  = aws + "cross-zone-load-balancing-enabled"
	awsAttributes = aws + "attributes"
	awsCert       = aws + "ssl-cert"
	awsSSLPorts   = aws + "ssl-ports"
)

// attributeCrossZone is the only attribute with an effect in the key=value list of the annotation awsAttributes.
const attributeCrossZone = "load_balancing.cross_zone.enabled"

// Row describes one annotation or label, or all with a common prefix of their keys.
type Row struct {
	// Key is the whole key, or a prefix of keys followed by *.
	Key string
	// Of is the program that defines the annotation. It is a heading in the manual page.
	Of string
	// Kinds are the kinds of objects for which the annotation or label is defined; nil means Service.
	Kinds []string
	// Label is true for a label, and false for an annotation.
	Label  bool
	Effect Effect
	// Values describes the accepted values, for display; "" if Text describes them, or any value is accepted.
	Values string
	// Text describes the annotation or label. For the effect Named it describes what happens instead and what to write.
	Text string
	// Page is the name of the manual page with more information, without .md.
	Page string

	// idle lists the values that ask for nothing (see asksNothing); nil if there are none.
	idle []string
	// balancer means that the annotation has an effect only on Services of type LoadBalancer.
	balancer bool
	// internal means that the annotation asks for an internal load balancer.
	internal bool
	// instead is the annotation with the same effect on Services of other types, or on other kinds; "" if there is none.
	instead string
}

// isPattern reports whether the key of the row is a prefix followed by *.
func (r *Row) isPattern() bool { return strings.HasSuffix(r.Key, "*") }

// kinds returns the kinds of objects for which the annotation or label is defined.
func (r *Row) kinds() []string {
	if r.Kinds == nil {
		return []string{object.KindService}
	}
	return r.Kinds
}

// rows is the text of rows.txt, which describes its own format.
//
//go:embed rows.txt
var rows string

// tables holds the rows of rows.txt and their indexes.
type tables struct {
	rows        []Row           // in the order of the manual page
	byKey       map[string]*Row // rows with a whole key, by key
	patterns    []*Row          // rows with a prefix as key, longest first
	internals   []*Row          // rows of annotations that ask for an internal load balancer
	clientLists []*Row          // rows of annotations that refer to a client list stored in a cloud, which svcctl cannot read
}

// Table returns all rows, in the order of the manual page. The caller must not change it.
func Table() []Row { return table().rows }

// table parses rows.txt when it is first called. The tests of this package (TestManual, TestRows) fail for a row with a missing cell, an
// unknown effect or an unknown shared text.
var table = sync.OnceValue(func() *tables {
	t := &tables{byKey: map[string]*Row{}}
	shared, of := map[string]string{}, ""
	for line := range strings.Lines(rows) {
		line = strings.TrimSpace(line)
		name, text, isText := strings.Cut(line, " = ")
		if heading, is := strings.CutPrefix(line, "# "); is {
			of = heading
		} else if isText && strings.HasPrefix(name, "$") {
			shared[name] = text
		} else if cells := strings.Split(line, " |"); of != "" && line != "" {
			t.rows = append(t.rows, parseRow(of, cells, shared))
		}
	}
	for i := range t.rows {
		r := &t.rows[i]
		if r.isPattern() {
			t.patterns = append(t.patterns, r)
		} else {
			t.byKey[r.Key] = r
		}
		if r.internal {
			t.internals = append(t.internals, r)
		}
		if r.Effect == Refused && r.balancer {
			t.clientLists = append(t.clientLists, r)
		}
	}
	slices.SortStableFunc(t.patterns, func(a, b *Row) int { return len(b.Key) - len(a.Key) })
	return t
})

// parseRow reads the cells of a row: key, effect, values, page, values that ask for nothing, text.
func parseRow(of string, cells []string, shared map[string]string) Row {
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	r := Row{Of: of, Values: cells[2], Page: cells[3], Text: cells[5]}
	var on, effect string
	r.Key, on, _ = strings.Cut(cells[0], " (")
	on, r.Label = strings.CutPrefix(strings.TrimSuffix(on, ")"), "label ")
	if on != "" {
		r.Kinds = strings.Split(strings.TrimPrefix(on, "of "), ", ")
	}
	effect, r.instead, _ = strings.Cut(cells[1], ", else ")
	switch r.Effect = Effect(effect); effect {
	case "balances", "internal":
		r.Effect, r.balancer, r.internal = Acts, true, effect == "internal"
	case "clients":
		r.Effect, r.balancer = Refused, true
	}
	switch idle := cells[4]; idle {
	case "":
	case "empty", "code":
		r.idle = []string{""}
	case "off":
		r.idle = offWords
	default:
		r.idle = append(strings.Split(idle, ", "), "")
	}
	if strings.HasPrefix(r.Text, "$") {
		name, argument, _ := strings.Cut(r.Text, " ")
		r.Text = strings.Replace(shared[name], "%s", argument, 1)
	}
	return r
}

// Find returns the row of a key, or else the row with the longest matching prefix; nil if there is none.
func Find(key string) *Row {
	if r := table().byKey[key]; r != nil {
		return r
	}
	if !strings.Contains(key, "/") { // all patterns have one
		return nil
	}
	for _, r := range table().patterns {
		if strings.HasPrefix(key, r.Key[:len(r.Key)-1]) {
			return r
		}
	}
	return nil
}

// found returns, sorted, the keys of the map values that have a row in the table. It considers rows of labels if labels is set, otherwise rows of
// annotations.
func found(values map[string]string, labels bool) (keys []string) {
	for key := range values {
		if r := Find(key); r != nil && r.Label == labels {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// AreInert reports whether none of the annotations has an effect or deserves a warning: each has no row, or the effect Kept.
func AreInert(a map[string]string) bool {
	for key := range a {
		if r := Find(key); r != nil && r.Effect != Kept {
			return false
		}
	}
	return true
}

// asksNothing reports whether a value gives no reason for the refusal or warning that the row describes: it is empty, a default, turns the feature
// off, or is handled elsewhere (such as AWS certificates that are all Secrets).
func (r *Row) asksNothing(value string) bool {
	switch r.Key {
	case "service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints": // their case matters
		return value == "" || value == "Disabled" || value == "disabled"
	case "service.alpha.kubernetes.io/tolerate-unready-endpoints":
		return value == "" || value == "false"
	case awsLogBucket, awsLogBucketUnder: // package resolve has a warning of its own
		return true
	case awsAttributes:
		attributes := pairs(value)
		delete(attributes, attributeCrossZone)
		return len(attributes) == 0
	case awsCert: // all of them are Secrets
		return strings.TrimSpace(value) != "" && !slices.ContainsFunc(strings.Split(value, ","), func(name string) bool {
			name = strings.TrimSpace(name)
			return name != "" && !strings.HasPrefix(name, localSecret)
		})
	case alibaba + "protocol-port", alibabaOld + "protocol-port":
		return len(tlsPorts(value)) == 0
	case tencentCloud + "specify-protocol":
		ports, all := portsInJSON(value)
		return len(ports) == 0 && !all
	case linode + "port-*":
		return plainOfLinode(value)
	}
	return isAny(value, r.idle...)
}

// isAny reports whether a value equals one of several, ignoring case and surrounding white space.
func isAny(value string, of ...string) bool {
	return slices.ContainsFunc(of, func(v string) bool { return strings.EqualFold(v, strings.TrimSpace(value)) })
}

// offWords are the values that turn a feature off.
var offWords = []string{"", "false", "off", "0", "none", "disabled"}

// Balances reports whether an annotation has an effect on load-balanced Services of every type. It excludes the annotations
// about relayed ports: see Relays.
func Balances(key string) bool {
	r := Find(key)
	return r != nil && r.Of != ofKubernetes && (r.Effect == Acts || r.Key == awsLogBucket || r.Key == awsLogBucketUnder) && r.Kinds == nil && !r.balancer && r.Page != "relay"
}

// Relays reports whether an annotation is about relayed ports and has an effect on Services of every type.
func Relays(key string) bool {
	r := Find(key)
	return r != nil && r.Effect == Acts && !r.balancer && r.Page == "relay"
}

// On returns whether the row describes an annotation or a label, and of which kinds, such as "annotation of Service".
func (r *Row) On() string {
	what := "annotation"
	if r.Label {
		what = "label"
	}
	return what + " of " + strings.Join(r.kinds(), ", ")
}
