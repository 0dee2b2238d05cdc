package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// metallb reads the objects of MetalLB among those of a cluster. They have no counterpart in manifests, and
// become flags of `svcctl serve` and `svcctl announce`.
type metallb struct {
	*reading
	lines       map[int]bool // where its objects begin
	all         []value
	communities map[string]string
	bfd         map[string]value

	serve, announce, l2 []string
	asn                 string
	multihop            bool
}

const metallbGroup = "metallb.io/"

// collect takes an object of MetalLB.
func (m *metallb) collect(doc value) {
	if m.lines == nil {
		m.lines, m.communities, m.bfd = map[int]bool{}, map[string]string{}, map[string]value{}
	}
	if !strings.HasPrefix(doc.get("apiVersion").text(), metallbGroup) {
		return
	}
	m.lines[doc.line()] = true
	m.all = append(m.all, doc)
	switch doc.get("kind").text() {
	case "Community":
		for _, c := range doc.get("spec").get("communities").items() {
			m.communities[c.get("name").text()] = c.get("value").text()
		}
	case "BFDProfile":
		m.bfd[doc.get("metadata").get("name").text()] = doc
	}
}

// settings makes flags of what was collected.
func (m *metallb) settings() {
	for _, doc := range m.all {
		name := doc.get("metadata").get("name").text()
		switch kind := doc.get("kind").text(); kind {
		case "IPAddressPool":
			m.pool(doc, name)
		case "L2Advertisement":
			m.l2Advertisement(doc, name)
		case "BGPAdvertisement":
			m.bgpAdvertisement(doc, name)
		case "BGPPeer":
			m.peer(doc, name)
		case "Community", "BFDProfile":
		default:
			m.lose(nil, doc.line(), "%s %s has no counterpart and is left out", kind, name)
		}
	}
	if len(m.serve) > 0 {
		m.out.Settings = append(m.out.Settings, "svcctl serve "+strings.Join(m.serve, " "))
	}
	if m.asn != "" {
		m.announce = append([]string{"--asn " + m.asn}, m.announce...)
	}
	if m.multihop {
		m.announce = append(m.announce, "--multihop")
	}
	if flags := slices.Concat(m.l2, m.announce); len(flags) > 0 {
		m.out.Settings = append(m.out.Settings, "svcctl announce "+strings.Join(flags, " "))
	}
}

// rest tells of the fields of a spec that were not read.
func (m *metallb) rest(doc value, read map[string]string) {
	spec := doc.get("spec")
	for _, key := range spec.keys() {
		hint, known := read[key]
		if known && hint == "" {
			continue
		}
		if hint != "" {
			hint = ": " + hint
		}
		at := spec.get(key)
		m.lose(nil, at.line(), "%s %s of %s %s has no counterpart and is left out%s", key, at.short(), doc.get("kind").text(), doc.get("metadata").get("name").text(), hint)
	}
}

func (m *metallb) pool(doc value, name string) {
	list := doc.get("spec").get("addresses").items()
	if len(list) == 0 {
		m.fail(doc.line(), "IPAddressPool %s has no addresses", name)
	}
	for _, a := range list {
		text := strings.ReplaceAll(a.text(), " ", "")
		if text == "" {
			m.fail(a.line(), "an address of IPAddressPool %s is no text", name)
			continue
		}
		m.serve = append(m.serve, "--load-balancer-pool "+text)
	}
	read := map[string]string{"addresses": "", "autoAssign": "any Service may be given an address of the pool", "serviceAllocation": "any Service may be given an address of the pool"}
	if doc.get("spec").get("autoAssign").text() == "true" {
		read["autoAssign"] = ""
	}
	if doc.get("spec").get("avoidBuggyIPs").text() == "false" {
		read["avoidBuggyIPs"] = ""
	}
	m.rest(doc, read)
}

const allPools = "all pools are announced alike"

func (m *metallb) l2Advertisement(doc value, _ string) {
	interfaces := doc.get("spec").get("interfaces").items()
	for _, i := range interfaces {
		m.l2 = append(m.l2, "--l2 "+i.text())
	}
	if len(interfaces) == 0 && !slices.Contains(m.l2, "--l2 auto") {
		m.l2 = append(m.l2, "--l2 auto")
	}
	m.rest(doc, map[string]string{"interfaces": "", "ipAddressPools": allPools, "ipAddressPoolSelectors": allPools, "nodeSelectors": "run `svcctl announce` on the boxes that shall announce"})
}

func (m *metallb) bgpAdvertisement(doc value, _ string) {
	spec := doc.get("spec")
	for _, c := range spec.get("communities").items() {
		text := c.text()
		if alias, is := m.communities[text]; is {
			text = alias
		}
		text = strings.TrimPrefix(text, "large:")
		if !strings.Contains(text, ":") {
			m.fail(c.line(), "there is no Community named %s", text)
			continue
		}
		if flag := "--community " + text; !slices.Contains(m.announce, flag) {
			m.announce = append(m.announce, flag)
		}
	}
	if p := spec.get("localPref"); p.is() {
		m.announce = append(m.announce, "--local-pref "+p.text())
	}
	read := map[string]string{"communities": "", "localPref": "", "ipAddressPools": allPools, "ipAddressPoolSelectors": allPools, "peers": "all peers are told alike",
		"nodeSelectors": "run `svcctl announce` on the boxes that shall announce", "aggregationLength": "each address is a route of its own", "aggregationLengthV6": "each address is a route of its own"}
	if spec.get("aggregationLength").text() == "32" {
		read["aggregationLength"] = ""
	}
	if spec.get("aggregationLengthV6").text() == "128" {
		read["aggregationLengthV6"] = ""
	}
	m.rest(doc, read)
}

func (m *metallb) peer(doc value, name string) {
	spec := doc.get("spec")
	my, asn, addr := spec.get("myASN").text(), cmp.Or(spec.get("peerASN").text(), spec.get("dynamicASN").text()), spec.get("peerAddress").text()
	if my == "" || asn == "" {
		m.fail(doc.line(), "BGPPeer %s has no myASN, or no peerASN", name)
		return
	}
	if m.asn != "" && m.asn != my {
		m.lose(nil, spec.get("myASN").line(), "BGPPeer %s: another AS of this box, %s, has no counterpart: it is left out; run a second announcer", name, my)
		return
	}
	m.asn = my
	if addr == "" {
		addr = spec.get("interface").text()
	}
	if addr == "" {
		m.fail(doc.line(), "BGPPeer %s has no peerAddress", name)
		return
	}
	m.announce = append(m.announce, fmt.Sprintf("--peer %s=%s@%s", name, asn, addr))
	m.multihop = m.multihop || spec.get("ebgpMultiHop").text() == "true"
	if p := spec.get("bfdProfile"); p.is() {
		m.profile(p, name)
	}
	read := map[string]string{"myASN": "", "peerASN": "", "dynamicASN": "", "peerAddress": "", "ebgpMultiHop": "", "bfdProfile": "",
		"password": "write it to a file for --peer-password-file", "passwordSecret": "write it to a file for --peer-password-file",
		"nodeSelectors": "run `svcctl announce` on the boxes that shall announce"}
	if spec.get("peerPort").text() == "179" {
		read["peerPort"] = ""
	}
	if !spec.get("peerAddress").is() {
		read["interface"] = ""
	}
	m.rest(doc, read)
}

// profile reads the BFDProfile that a peer names.
func (m *metallb) profile(name value, peer string) {
	doc, has := m.bfd[name.text()]
	if !has {
		m.fail(name.line(), "there is no BFDProfile %s, which BGPPeer %s names", name.text(), peer)
		return
	}
	spec := doc.get("spec")
	interval, detect := 300, cmp.Or(spec.get("detectMultiplier").text(), "3") // MetalLB's defaults
	for _, key := range []string{"receiveInterval", "transmitInterval"} {
		if at := spec.get(key); at.is() {
			var n int
			if _, err := fmt.Sscan(at.text(), &n); err != nil || n < 10 || n > 60000 {
				m.fail(at.line(), "%s %s is no number of milliseconds from 10 to 60000", key, at.text())
				return
			}
			if key == "receiveInterval" || n > interval {
				interval = n
			}
		}
	}
	flag := fmt.Sprintf("--bfd %sx%s", time.Duration(interval)*time.Millisecond, detect)
	if !slices.ContainsFunc(m.announce, func(f string) bool { return strings.HasPrefix(f, "--bfd ") }) {
		m.announce = append(m.announce, flag)
	} else if !slices.Contains(m.announce, flag) {
		m.lose(nil, name.line(), "BFDProfile %s of BGPPeer %s: all peers are watched alike", name.text(), peer)
	}
	if a, b := spec.get("receiveInterval").text(), spec.get("transmitInterval").text(); a != b {
		m.lose(nil, doc.line(), "BFDProfile %s: both directions have the larger interval, %s", name.text(), time.Duration(interval)*time.Millisecond)
	}
	m.rest(doc, map[string]string{"receiveInterval": "", "transmitInterval": "", "detectMultiplier": ""})
}
