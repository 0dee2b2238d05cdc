package appliance

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/config"
	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/store"
	"svcctl.io/svcctl/store/annotation"
	"svcctl.io/svcctl/store/engine"
	"svcctl.io/svcctl/store/manifest"
	"svcctl.io/svcctl/store/object"
)

// bearers are documents of the kinds that annotations are about, without one. NAME is replaced.
var bearers = map[string]string{
	object.KindService:          `{apiVersion: v1, kind: Service, metadata: {name: NAME, namespace: default}, spec: {type: LoadBalancer, ports: [{name: web, port: 443}, {name: dns, port: 53, protocol: UDP}]}}`,
	object.KindEndpointSlice:    `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: NAME, namespace: default}, addressType: IPv4, endpoints: []}`,
	object.KindIPAddressPool:    `{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: NAME, namespace: default}, spec: {addresses: [192.0.2.0/28]}}`,
	object.KindL2Advertisement:  `{apiVersion: metallb.io/v1beta1, kind: L2Advertisement, metadata: {name: NAME, namespace: default}}`,
	object.KindBGPAdvertisement: `{apiVersion: metallb.io/v1beta1, kind: BGPAdvertisement, metadata: {name: NAME, namespace: default}}`,
	object.KindBGPPeer:          `{apiVersion: metallb.io/v1beta2, kind: BGPPeer, metadata: {name: NAME, namespace: default}, spec: {myASN: 64512, peerASN: 64513, peerAddress: 192.0.2.9}}`,
}

// An annotation of the table, with a wrong value, an empty one, one with blanks, in another case, on another kind, and on
// Services of other types, is answered alike by files (validate, plan, the status of a watched directory: Plan) and by the
// API (apply, kubectl: Store.Write).
func TestFilesAndTheAPIAnswerAlike(t *testing.T) {
	cfg := config.Default()
	cfg.Addresses.ClusterIPRanges = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
	cfg.Addresses.LoadBalancerPools = []nft.Range{{First: netip.MustParseAddr("198.18.0.1"), Last: netip.MustParseAddr("198.18.255.254")}}
	objects, err := store.Open(engine.NewMemory(), cfg.Store())
	if err != nil {
		t.Fatal(err)
	}
	type asked struct{ what, key string }
	all := map[object.Ref]asked{}
	var text strings.Builder
	add := func(kind, document, key, value, what string) {
		if value == "no-such_value" && strings.HasSuffix(key, "ssl-ports") {
			value = "4443"
		}
		name := fmt.Sprintf("r%d", len(all))
		document = strings.Replace(document, "metadata: {name: NAME,", fmt.Sprintf("metadata: {name: %s, annotations: {%q: %q},", name, key, value), 1)
		all[object.Ref{Kind: kind, Namespace: "default", Name: name}] = asked{fmt.Sprintf("%s: %q on %s (%s)", key, value, kind, what), key}
		text.WriteString(document + "\n---\n")
	}
	keys := func(r *annotation.Row) string { return strings.ReplaceAll(r.Key, "*", "a-thing") }
	service := bearers[object.KindService]
	for _, r := range annotation.Table() {
		if r.Label || r.Effect == annotation.Kept {
			continue
		}
		kinds := r.Kinds
		if kinds == nil {
			kinds = []string{object.KindService}
		}
		for kind, document := range bearers {
			switch {
			case slices.Contains(kinds, kind):
				add(kind, document, keys(&r), "no-such_value", "a wrong value")
				add(kind, document, keys(&r), "", "no value")
				add(kind, document, keys(&r), " no-such_value ", "blanks")
			case strings.HasPrefix(r.Key, "svcctl.io/"):
				add(kind, document, keys(&r), "1", "another kind")
			}
		}
		if slices.Contains(kinds, object.KindService) {
			add(object.KindService, service, strings.ToUpper(keys(&r)[len(keys(&r))-5:])+".example.com/x", "1", "nothing of ours")
			add(object.KindService, service, keys(&r)[:len(keys(&r))-2]+strings.ToUpper(keys(&r)[len(keys(&r))-2:]), "1", "another case")
			for _, spec := range []string{"{type: ClusterIP, ports: [{name: web, port: 443}]}", "{clusterIP: None, ports: [{name: web, port: 443}]}", "{type: ExternalName, externalName: example.com}"} {
				add(object.KindService, service[:strings.Index(service, "spec:")]+"spec: "+spec+"}", keys(&r), "no-such_value", spec)
			}
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	_, problems, err := Plan(cfg, []string{dir}, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	field := func(key string) string { return "metadata.annotations[" + key + "]" }
	inFiles, shared := map[object.Ref][]string{}, map[string]string{}
	for _, p := range problems {
		if p.Field == field(all[p.Object].key) && !strings.Contains(p.Message, "load balancer pool") { // which are the box's
			if text, is := strings.CutSuffix(p.Message, "; other objects have it too"); is {
				shared[p.Field+text] = text
				continue
			}
			inFiles[p.Object] = append(inFiles[p.Object], p.Message)
		}
	}
	answered := 0
	file := manifest.Decode("a.yaml", []byte(text.String()), manifest.DefaultLimits())
	for _, d := range file.Documents {
		ref := object.RefOf(d.Object)
		results, err := objects.Write(store.Write{Ref: ref, Object: object.DeepCopy(d.Object)})
		if err != nil {
			t.Fatal(err)
		}
		var overAPI []string
		silent := true
		for _, w := range results[0].Warnings {
			silent = silent && !strings.Contains(w, all[ref].key)
			if rest, is := strings.CutPrefix(w, field(all[ref].key)+": "); is {
				overAPI = append(overAPI, rest)
			}
		}
		if refused, is := results[0].Err.(object.Errors); is {
			for _, e := range refused {
				silent = silent && !strings.Contains(e.Body(), all[ref].key) // of another field, and it names the annotation
				if e.Field == field(all[ref].key) {
					overAPI = append(overAPI, e.Body())
				}
			}
		}
		same := func(a, b string) bool { return strings.HasSuffix(a, b) || strings.HasSuffix(b, a) }
		if list := inFiles[ref]; len(list) > 0 && !slices.ContainsFunc(overAPI, func(m string) bool {
			return slices.ContainsFunc(list, func(other string) bool { return same(m, other) })
		}) {
			t.Errorf("%s\n  files: %q\n  API:   %q", all[ref].what, list, overAPI)
		}
		for _, m := range overAPI {
			if shared[field(all[ref].key)+m] == "" && !slices.ContainsFunc(inFiles[ref], func(other string) bool { return same(m, other) }) {
				t.Errorf("%s\n  API:   %s\n  files: %q", all[ref].what, m, inFiles[ref])
			}
		}
		if len(overAPI) > 0 || !silent {
			answered++
		} else if !mayBeSilent(all[ref].key, all[ref].what) {
			t.Errorf("silence: %s", all[ref].what)
		}
	}
	if answered < len(all)/2 {
		t.Errorf("%d of %d are answered", answered, len(all))
	}
}

// mayBeSilent reports whether nothing has to be said: an empty value mostly asks for nothing, some annotations may have any
// value, and an example of none is none.
func mayBeSilent(key, what string) bool {
	return strings.HasSuffix(what, "(no value)") && key != "svcctl.io/source-sets" || strings.HasSuffix(what, "(nothing of ours)") ||
		strings.HasSuffix(key, "shared-ip") || strings.HasSuffix(key, "sharing-key") || strings.HasSuffix(key, "internal-subnetid")
}
