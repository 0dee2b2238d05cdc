package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"svcctl.io/svcctl/appliance/netlab"
)

// transitions are the times of conditions in JSON.
var transitions = regexp.MustCompile(`(?m)^.*"lastTransitionTime".*\n`)

// Test434_export_and_restore makes a second box of an export: the same objects, uids and revisions, and the
// same ruleset to the byte.
func Test434_export_and_restore(t *testing.T) {
	b, v, at := managed(t, nil)
	b.write("web.yaml", b.webDocuments(b.L1, b.R1))
	b.write("node.yaml", func(f family) []string {
		return []string{f.service("node", "type: NodePort", "sessionAffinity: ClientIP", "ports: [{name: p80, port: 80}]"), f.slice("node", "p80: 80", b.L1, b.R1)}
	})
	v.synced()
	revision := fmt.Sprint(b.status().Revision.Accepted)
	v.does(0, "delete", "svc", ipv4.name("management"), ipv6.name("management"))
	v.does(0, "rollback", "--yes", revision)
	v.synced()
	path := filepath.Join(v.dir, "export.jsonl")
	v.does(0, "admin", "export", path)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	objects := func(b *box) string {
		t.Helper()
		out, errOut, code := b.svcctl.Svcctl("get", "svc,endpointslices", "-A", "-o", "json")
		if code != 0 {
			t.Fatal(errOut)
		}
		return transitions.ReplaceAllString(out, "") // of the box that judges, since its start
	}
	other := &box{Standard: netlab.NewStandard(t), t: t, flags: b.flags}
	other.svcctl = other.GW1.Appliance(binary, b.flags.args()...)
	other.svcctl.Manifests = b.svcctl.Manifests
	restore := func(file string, more ...string) (string, error) {
		out, errOut, err := other.GW1.Run(binary, append([]string{"admin", "restore", file, "--data-dir", other.svcctl.Data}, more...)...)
		return out + errOut, err
	}
	// Half of it is refused, and nothing is written.
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := restore(v.file("half.jsonl", string(whole[:len(whole)/2]))); err == nil || !strings.Contains(out, "nothing was changed") {
		t.Errorf("half an export: %s %v", out, err)
	}
	if out, err := restore(path); err != nil || !strings.Contains(out, "restored") {
		t.Fatalf("%s %v", out, err)
	}
	other.svcctl.Start()
	if got, want := inOrder(other.ruleset()), inOrder(b.ruleset()); got != want {
		t.Errorf("the ruleset is\n%s\nwant\n%s", got, want)
	}
	if got, want := objects(other), objects(b); got != want {
		t.Errorf("the objects are\n%s\nwant\n%s", got, want)
	}
	// In a kernel without a past the box has the ruleset of the other one to the byte.
	b.reboot(t, 434)
	b.svcctl.Start()
	if got, want := other.ruleset(), b.ruleset(); got != want {
		t.Errorf("after a reboot the ruleset is\n%s\nand that of the restored box\n%s", want, got)
	}
	if err := other.tryOpen(at); err != nil {
		t.Error(err)
	}
	for _, f := range families {
		other.reaches(t, other.IN, "tcp", f.at(f.vip(41), 80), plain, f.on(80, other.L1, other.R1)...)
	}
	if out, err := restore(path); err == nil || !strings.Contains(out, "another svcctl uses") {
		t.Errorf("onto a box that serves: %s %v", out, err)
	}
	other.svcctl.Stop()
	if out, err := restore(path); err == nil || !strings.Contains(out, "--replace") {
		t.Errorf("onto a box with Services: %s %v", out, err)
	}
	if out, err := restore(path, "--replace"); err == nil || !strings.Contains(out, "this removes all that "+other.svcctl.Data+" holds") || !strings.Contains(out, "repeat it with --yes") {
		t.Errorf("--replace without --yes: %s %v", out, err)
	}
	if out, err := restore(path, "--replace", "--yes"); err != nil {
		t.Errorf("%s %v", out, err)
	}
}

// inOrder are the sets, maps, counters and chains of a ruleset, and the elements of each, in the order of their
// text: nft lists them as they came.
func inOrder(ruleset string) string {
	var blocks []string
	var block []string
	inElements := false
	for line := range strings.Lines(ruleset) {
		text := strings.TrimSpace(line)
		text, begins := strings.CutPrefix(text, "elements = { ")
		inElements = inElements || begins
		if inElements {
			text = strings.TrimSuffix(text, ",")
			if rest, ends := strings.CutSuffix(text, " }"); ends {
				text, inElements = rest, false
			}
			block = append(block, "element "+text)
			continue
		}
		switch {
		case strings.HasPrefix(text, "table "), text == "":
		case text == "}":
			// Rules have an order, elements have none.
			if len(block) > 0 && !strings.HasPrefix(block[0], "chain") {
				slices.Sort(block[1:])
			}
			blocks = append(blocks, strings.Join(block, "\n"))
			block = nil
		default:
			block = append(block, text)
		}
	}
	slices.Sort(blocks)
	return strings.Join(blocks, "\n")
}

// ruleset returns nft's listing of the tables, without numbers that count.
func (b *box) ruleset() string {
	b.t.Helper()
	text := ""
	for _, f := range families {
		text += b.GW1.Nft("-s", "list", "table", f.pick("ip", "ip6"), "svcctl")
	}
	return text
}
