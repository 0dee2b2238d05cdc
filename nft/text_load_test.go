package nft

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// needRoot skips a test that makes network namespaces, loudly; with
// SVCCTL_REQUIRE_PRIVILEGED=1 it fails it.
func needRoot(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: tests with -short make no networks")
	}
	_, err := exec.LookPath("nft")
	if os.Geteuid() == 0 && err == nil {
		return
	}
	const why = "NOT TESTED: needs root and the nft program"
	if os.Getenv("SVCCTL_REQUIRE_PRIVILEGED") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// load gives a script to nft in a network namespace that ends with it: once to check
// it, once to load it. It returns what nft lists then.
func load(t *testing.T, script string) string {
	t.Helper()
	const commands = `script=$(cat) && printf '%s\n' "$script" | nft -c -f - && printf '%s\n' "$script" | nft -f - && nft list ruleset`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", commands)
	cmd.Stdin = strings.NewReader(script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("nft: %v\n%s\nscript:\n%s", err, stderr.String(), script)
	}
	return stdout.String()
}

// unordered is a listing as a sorted list of facts, because nft lists elements in no
// particular order. Rules stay numbered.
func unordered(listing string) []string {
	var facts []string
	var table, block string
	line := 0
	for text := range strings.Lines(listing) {
		text = strings.TrimSpace(text)
		switch word, _, _ := strings.Cut(text, " "); word {
		case "", "}":
			continue
		case "table":
			table, block = text, ""
		case "set", "map", "chain":
			block, line = text, 0
		}
		if strings.HasPrefix(block, "chain") {
			line++
			facts = append(facts, fmt.Sprintln(table, block, line, text))
			continue
		}
		text = strings.TrimSuffix(strings.TrimPrefix(text, "elements = {"), "}")
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				facts = append(facts, fmt.Sprintln(table, block, part))
			}
		}
	}
	slices.Sort(facts)
	return facts
}

func sameListing(t *testing.T, got, want string) {
	t.Helper()
	g, w := unordered(got), unordered(want)
	if len(g) != len(w) {
		t.Errorf("nft lists %d facts of %d", len(g), len(w))
	}
	for _, fact := range w {
		if !slices.Contains(g, fact) {
			t.Errorf("nft does not list %s", fact)
		}
	}
	for _, fact := range g {
		if !slices.Contains(w, fact) {
			t.Errorf("nft also lists  %s", fact)
		}
	}
}

// loadable is the sample without the one rule that nft 1.0.6 lists but cannot load:
// see WriteText.
func loadable() Ruleset {
	rs := sample()
	rs[IPv6].Chains["remember-web"].Rules = nil
	return rs
}

// namesOfANewNamespace are the interfaces that a network namespace starts with.
var namesOfANewNamespace = Printer{Interfaces: map[uint32]string{1: "lo"}}

func TestTextLoads(t *testing.T) {
	needRoot(t)
	var text, named strings.Builder
	if err := loadable().WriteText(&text); err != nil {
		t.Fatal(err)
	}
	listing := load(t, text.String())
	if err := namesOfANewNamespace.Ruleset(&named, loadable()); err != nil {
		t.Fatal(err)
	}
	sameListing(t, listing, named.String())
	sameListing(t, load(t, named.String()), listing)
}

func TestBatchTextLoads(t *testing.T) {
	needRoot(t)
	rs := loadable()
	b := sampleBatch(rs)
	var text, want strings.Builder
	if err := b.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	listing := load(t, text.String())
	if err := namesOfANewNamespace.Ruleset(&want, rs); err != nil {
		t.Fatal(err)
	}
	sameListing(t, listing, want.String())

	// And away again.
	backends, remember := rs[IPv4].Sets["backends"], rs[IPv4].Sets["remember"]
	all := sortedElements(backends, IPv4)
	b.Ops = append(b.Ops,
		DeleteTable{IPv6},
		SetRules{IPv4, "postrouting", rs[IPv4].Chains["postrouting"].Rules[:1]},
		SetRules{IPv4, "output", nil},
		DeleteElements{IPv4, remember.Set, sortedElements(remember, IPv4)},
		DeleteChain{IPv4, "remember-web"}, DeleteChain{IPv4, "empty"}, DeleteChain{IPv4, "output"},
		DeleteSet{IPv4, "remember"}, DeleteSet{IPv4, "same"}, DeleteSet{IPv4, "on-link"},
		DeleteElements{IPv4, backends.Set, all[1:]},
		ForgetData{IPv4, rs[IPv4].Sets["affinity-web"].Set, []string{all[0].Data}},
	)
	for _, name := range []string{"remember", "same", "on-link"} {
		delete(rs[IPv4].Sets, name)
	}
	for _, name := range []string{"remember-web", "empty", "output"} {
		delete(rs[IPv4].Chains, name)
	}
	backends.Elements = Elements{all[0].Key: all[0].Data}
	rs[IPv4].Chains["postrouting"].Rules = rs[IPv4].Chains["postrouting"].Rules[:1]
	delete(rs, IPv6)
	text.Reset()
	want.Reset()
	if err := b.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := namesOfANewNamespace.Ruleset(&want, rs); err != nil {
		t.Fatal(err)
	}
	sameListing(t, load(t, text.String()), want.String())
}
