package annotation

import (
	"slices"
	"strings"

	"svcctl.io/svcctl/store/object"
)

// Effect is how far an annotation is implemented.
type Effect string

// The effects.
const (
	Acts    Effect = "acts"    // it does what it says
	Kept    Effect = "kept"    // it informs people or other programs, and is kept without a word
	Named   Effect = "named"   // it has no effect, which a warning says
	Refused Effect = "refused" // what it asks for is not given, and what would be wrong without it is not served
)

// Where a key is from: the headings of the table.
const (
	ofSvcctl       = "svcctl"
	ofKubernetes   = "Kubernetes"
	ofAWS          = "AWS, in-tree and AWS Load Balancer Controller"
	ofGCP          = "Google Cloud"
	ofAzure        = "Azure"
	ofOpenStack    = "OpenStack"
	ofIBM          = "IBM Cloud"
	ofOracle       = "Oracle Cloud"
	ofAlibaba      = "Alibaba Cloud"
	ofTencent      = "Tencent Cloud"
	ofBaidu        = "Baidu AI Cloud"
	ofDigitalOcean = "DigitalOcean"
	ofOtherClouds  = "Hetzner, Scaleway, Linode, Vultr, Huawei Cloud, Yandex Cloud, STACKIT, OVHcloud"
	ofMetalLB      = "MetalLB"
	ofOthers       = "Cilium, kube-vip, kube-router, PureLB, LoxiLB"
)

// Row is one annotation or label.
type Row struct {
	// Key is the whole key, or its beginning followed by *.
	Key string
	// Of is the program that it is from, a heading of the table.
	Of string
	// Kinds are the objects on which it means something; nil: Services.
	Kinds []string
	// Label is set for labels.
	Label  bool
	Effect Effect
	// Values are the values that it takes, for people; "" where the text tells, or any will do.
	Values string
	// Text describes it; of one that is named, what happens instead and what to write.
	Text string
	// Page is the page of the manual that tells more, without .md.
	Page string

	// idle reports values that ask for nothing else than what happens anyway; nil: none does.
	idle func(value string) bool
	// balancer is set for annotations that act on load balancers alone.
	balancer bool
	// instead is the annotation that has its effect on other Services, or on other kinds; "": none has.
	instead string
}

// isPattern reports whether the row is about all keys that begin like its own.
func (r *Row) isPattern() bool { return strings.HasSuffix(r.Key, "*") }

// kinds are the objects on which it means something.
func (r *Row) kinds() []string {
	if r.Kinds == nil {
		return []string{object.KindService}
	}
	return r.Kinds
}

// table has all rows in the order of the page.
var table = slices.Concat(svcctlRows, kubernetesRows, awsRows, gcpRows, azureRows, openStackRows, ibmRows, oracleRows,
	alibabaRows, tencentRows, baiduRows, digitalOceanRows, otherCloudRows, metalLBRows, otherRows)

// Table returns all rows, in the order of the manual page. The caller must not change it.
func Table() []Row { return table }

var (
	byKey    = map[string]*Row{} // of whole keys
	patterns []*Row              // the longer ones first
)

func init() {
	for i := range table {
		r := &table[i]
		switch {
		case r.isPattern():
			patterns = append(patterns, r)
		case byKey[r.Key] != nil:
			panic("annotation: two rows of " + r.Key)
		default:
			byKey[r.Key] = r
		}
	}
	slices.SortStableFunc(patterns, func(a, b *Row) int { return len(b.Key) - len(a.Key) })
}

// Find is the row of a key, or of the keys that begin like it; nil: nothing is known of it.
func Find(key string) *Row {
	if r := byKey[key]; r != nil {
		return r
	}
	for _, r := range patterns {
		if strings.HasPrefix(key, strings.TrimSuffix(r.Key, "*")) {
			return r
		}
	}
	return nil
}

// Values that ask for nothing.

func anyOf(values ...string) func(string) bool {
	return func(value string) bool {
		return slices.ContainsFunc(values, func(v string) bool { return strings.EqualFold(v, strings.TrimSpace(value)) })
	}
}

var (
	off   = anyOf("", "false", "off", "0", "none", "disabled")
	empty = anyOf("")
)

// Balances reports whether a key is of an annotation that acts on Services which are load balanced, of every type. Those
// that have ports relayed are not among them: see Relays.
func Balances(key string) bool {
	r := Find(key)
	return r != nil && r.Of != ofKubernetes && (r.Effect == Acts || r.Key == awsLogBucket || r.Key == awsLogBucketUnder) && r.Kinds == nil && !r.balancer && r.Page != "relay"
}

// Relays reports whether a key is of an annotation about relayed ports, of Services of every type.
func Relays(key string) bool {
	r := Find(key)
	return r != nil && r.Effect == Acts && !r.balancer && r.Page == "relay"
}

// On formats the subject of a row: "annotation of Service".
func (r *Row) On() string {
	what := "annotation"
	if r.Label {
		what = "label"
	}
	return what + " of " + strings.Join(r.kinds(), ", ")
}
