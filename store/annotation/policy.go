package annotation

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
)

// Policy has the versions of TLS and the cipher suites that clients are offered.
type Policy struct {
	// Name is the value of the annotation.
	Name string
	// Min and Max are versions of crypto/tls.
	Min, Max uint16
	// Suites has the cipher suites of TLS 1.2; those of TLS 1.3 are all good.
	Suites []uint16
}

// Suites of TLS 1.2 with forward secrecy and authenticated encryption. The policies of AWS have others
// besides, with CBC or without forward secrecy, which are never used here.
var (
	gcmSuites = []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	}
	goodSuites = append(slices.Clone(gcmSuites), tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256)
)

// policies lists the TLS policies, the default first. Those of AWS are in its tables of security policies of
// Classic and Network Load Balancers.
var policies = []Policy{
	{"1.2", tls.VersionTLS12, tls.VersionTLS13, goodSuites},
	{"1.3", tls.VersionTLS13, tls.VersionTLS13, nil},
	{"ELBSecurityPolicy-TLS13-1-3-2021-06", tls.VersionTLS13, tls.VersionTLS13, nil},
	{"ELBSecurityPolicy-TLS13-1-3-PQ-2025-09", tls.VersionTLS13, tls.VersionTLS13, nil},
	{"ELBSecurityPolicy-TLS13-1-2-2021-06", tls.VersionTLS12, tls.VersionTLS13, gcmSuites},
	{"ELBSecurityPolicy-TLS13-1-2-Res-2021-06", tls.VersionTLS12, tls.VersionTLS13, gcmSuites},
	{"ELBSecurityPolicy-TLS13-1-2-PQ-2025-09", tls.VersionTLS12, tls.VersionTLS13, gcmSuites},
	{"ELBSecurityPolicy-TLS13-1-2-Res-PQ-2025-09", tls.VersionTLS12, tls.VersionTLS13, gcmSuites},
	{"ELBSecurityPolicy-FS-1-2-Res-2020-10", tls.VersionTLS12, tls.VersionTLS12, gcmSuites},
	{"ELBSecurityPolicy-FS-1-2-Res-2019-08", tls.VersionTLS12, tls.VersionTLS12, gcmSuites},
	{"ELBSecurityPolicy-FS-1-2-2019-08", tls.VersionTLS12, tls.VersionTLS12, gcmSuites},
	{"ELBSecurityPolicy-TLS-1-2-2017-01", tls.VersionTLS12, tls.VersionTLS12, gcmSuites},
}

// obsolete are predefined policies of AWS that are there for TLS 1.0 and 1.1 or for suites with CBC or
// without forward secrecy.
var obsolete = []string{
	"ELBSecurityPolicy-TLS13-1-2-Ext1-2021-06", "ELBSecurityPolicy-TLS13-1-2-Ext2-2021-06", "ELBSecurityPolicy-TLS13-1-1-2021-06",
	"ELBSecurityPolicy-TLS13-1-0-2021-06", "ELBSecurityPolicy-TLS-1-2-Ext-2018-06", "ELBSecurityPolicy-TLS-1-1-2017-01",
	"ELBSecurityPolicy-TLS-1-0-2015-04", "ELBSecurityPolicy-FS-1-1-2019-08", "ELBSecurityPolicy-FS-2018-06", "ELBSecurityPolicy-2016-08",
	"ELBSecurityPolicy-2015-05", "ELBSecurityPolicy-2015-03", "ELBSecurityPolicy-2015-02", "ELBSecurityPolicy-2014-10",
	"ELBSecurityPolicy-2014-01", "ELBSecurityPolicy-2011-08", "ELBSample-ELBDefaultNegotiationPolicy", "ELBSample-OpenSSLDefaultNegotiationPolicy",
}

// policyOf finds a policy by what an annotation says, and why there is none.
func policyOf(text string) (p *Policy, why string) {
	text = strings.TrimSpace(text)
	if text == "" {
		return &policies[0], ""
	}
	for i := range policies {
		if strings.EqualFold(policies[i].Name, text) {
			return &policies[i], ""
		}
	}
	if slices.ContainsFunc(obsolete, func(name string) bool { return strings.EqualFold(name, text) }) {
		return nil, fmt.Sprintf("%q allows versions of TLS below 1.2 or weak cipher suites, which svcctl does not have: write %q, or ELBSecurityPolicy-TLS13-1-2-2021-06", text, policies[0].Name)
	}
	return nil, fmt.Sprintf("%q is no policy: write %q or %q, the least version, or a predefined policy of AWS such as ELBSecurityPolicy-TLS13-1-2-2021-06", text, policies[0].Name, policies[1].Name)
}
